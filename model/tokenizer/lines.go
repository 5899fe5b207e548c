package tokenizer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"harness-s/internal/strictjson"
)

// maxLineBytes bounds one line of RunTokenize's input.
const maxLineBytes = 64 << 20

// nextLine is U+0085, which some readers take for the end of a line, as they do U+2028 and U+2029; the JSON
// encoder escapes those two and every other separator of lines, but not this one.
var nextLine = []byte("\u0085")

// lineIn is a line to tokenize (text, special) or to decode (ids).
type lineIn struct {
	Text    *string `json:"text"`
	Special bool    `json:"special"`
	IDs     []int64 `json:"ids"`
}

// lineOut answers a line: the ids, and their text with special tokens kept.
type lineOut struct {
	IDs  []int32 `json:"ids"`
	Text string  `json:"text"`
}

// RunTokenize answers each JSON line of r with one on w: {"text", "special"} or {"ids"} with {"ids", "text"}.
// Blank lines are skipped. The first bad line ends it with an error that names the line.
func RunTokenize(t *Tokenizer, r io.Reader, w io.Writer) error {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), maxLineBytes)
	out := bufio.NewWriter(w)
	var one bytes.Buffer
	enc := json.NewEncoder(&one)
	enc.SetEscapeHTML(false)
	line := 0
	for in.Scan() {
		line++
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		answer, err := answerLine(t, in.Bytes())
		if err != nil {
			return errors.Join(fmt.Errorf("tokenize: line %d: %w", line, err), out.Flush())
		}
		one.Reset()
		if err := enc.Encode(answer); err != nil {
			return fmt.Errorf("tokenize: the answer to line %d: %w", line, err)
		}
		if _, err := out.Write(bytes.ReplaceAll(one.Bytes(), nextLine, []byte(`\u0085`))); err != nil {
			return fmt.Errorf("tokenize: write the answer to line %d: %w", line, err)
		}
	}
	if err := in.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", maxLineBytes)
		}
		return errors.Join(fmt.Errorf("tokenize: line %d: %w", line+1, err), out.Flush())
	}
	return out.Flush()
}

func answerLine(t *Tokenizer, data []byte) (lineOut, error) {
	var q lineIn
	if err := strictjson.Decode(data, &q); err != nil {
		return lineOut{}, err
	}
	if (q.Text == nil) == (q.IDs == nil) {
		return lineOut{}, errors.New(`want either "text" or "ids"`)
	}
	ids := []int32{}
	if q.Text != nil {
		ids = t.EncodeAppend(ids, *q.Text, q.Special)
	}
	for i, id := range q.IDs {
		if id < 0 || id >= int64(t.VocabSize()) || !t.Has(int32(id)) {
			return lineOut{}, fmt.Errorf("ids[%d]: %d is not in the vocabulary (0 to %d)", i, id, t.VocabSize()-1)
		}
		ids = append(ids, int32(id))
	}
	return lineOut{ids, t.Decode(ids)}, nil
}
