package nodes

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Link is the connection between the leader and one other node. It carries messages, gob in frames of bounded size, and
// notices when the other side is gone or silent. Messages are sent and received by one goroutine each; Break, Close and
// Broken may be called from any.
type Link struct {
	Peer string // the other side, for errors: "node 1 (host, 10.0.0.2:50422)"

	conn   net.Conn
	in     chan []byte // messages that came
	broken chan struct{}
	once   sync.Once
	err    error // why the link is broken; set before broken is closed
	write  sync.Mutex
}

// Frames are a kind, the payload's length and the payload.
const (
	frameBeat    = byte(iota) // empty: the sender lives
	frameMessage              // gob
	frameEnd                  // text: why the sender ends the run
	frameGreeting
)

const (
	headerBytes = 5
	maxMessage  = 1 << 30
	// beatEvery is how often a side says that it lives, however long its own work takes. A side that says nothing for silence
	// is taken for dead.
	beatEvery = 3 * time.Second
	silence   = 45 * time.Second
	// sendWithin bounds one write: a side that reads nothing is as good as dead.
	sendWithin = time.Minute
)

// newLink starts what a connection needs once the handshake is over.
func newLink(conn net.Conn, peer string) *Link {
	l := &Link{Peer: peer, conn: conn, in: make(chan []byte, 1), broken: make(chan struct{})}
	go l.read()
	go l.beat()
	return l
}

func (l *Link) beat() {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.broken:
			return
		case <-tick.C:
			if err := l.frame(frameBeat, nil); err != nil {
				l.fail(err)
			}
		}
	}
}

// read takes frames until the link breaks.
func (l *Link) read() {
	r := &patientReader{l.conn}
	for {
		kind, payload, err := readFrame(r, maxMessage)
		switch {
		case err != nil:
			l.fail(fmt.Errorf("connection lost: %w", err))
			return
		case kind == frameEnd:
			l.fail(fmt.Errorf("it ended the run: %s", payload))
			return
		case kind == frameMessage:
			select {
			case l.in <- payload:
			case <-l.broken:
				return
			}
		}
	}
}

// patientReader gives up when nothing comes for the time of silence. That is counted in short waits, so that a process that
// was itself stopped for long does not find its peers dead.
type patientReader struct{ net.Conn }

func (r patientReader) Read(p []byte) (n int, err error) {
	for range silence / beatEvery {
		r.SetReadDeadline(time.Now().Add(beatEvery))
		if n, err = r.Conn.Read(p); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	return 0, fmt.Errorf("nothing heard for %s", silence)
}

// readFrame reads a frame of at most limit bytes. Memory is taken as bytes come, not as they are announced.
func readFrame(r io.Reader, limit int64) (kind byte, payload []byte, err error) {
	var head [headerBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[1:]))
	if kind = head[0]; kind > frameGreeting || size > limit {
		return 0, nil, fmt.Errorf("not a message of this protocol (kind %d, %d bytes)", kind, size)
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, size); err != nil {
		return 0, nil, err
	}
	return kind, b.Bytes(), nil
}

func frame(kind byte, payload []byte) []byte {
	head := [headerBytes]byte{kind}
	binary.BigEndian.PutUint32(head[1:], uint32(len(payload)))
	return append(head[:], payload...)
}

func (l *Link) frame(kind byte, payload []byte) error {
	l.write.Lock()
	defer l.write.Unlock()
	l.conn.SetWriteDeadline(time.Now().Add(sendWithin))
	_, err := l.conn.Write(frame(kind, payload))
	return err
}

// Send sends a message, any value that gob takes.
func (l *Link) Send(v any) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return fmt.Errorf("%s: send: %w", l.Peer, err)
	}
	if b.Len() > maxMessage {
		return fmt.Errorf("%s: send: a message of %d bytes, more than %d", l.Peer, b.Len(), maxMessage)
	}
	if err := l.frame(frameMessage, b.Bytes()); err != nil {
		l.fail(fmt.Errorf("connection lost: %w", err))
		return l.Err()
	}
	return nil
}

// Receive waits for the next message, however long that takes, or for the link to break.
func (l *Link) Receive(v any) error {
	select {
	case raw := <-l.in:
		return l.decode(raw, v)
	case <-l.broken:
	}
	select { // what came before it broke
	case raw := <-l.in:
		return l.decode(raw, v)
	default:
		return l.Err()
	}
}

func (l *Link) decode(raw []byte, v any) error {
	if err := gob.NewDecoder(bytes.NewReader(raw)).Decode(v); err != nil {
		return fmt.Errorf("%s: a message that cannot be read: %w", l.Peer, err)
	}
	return nil
}

// Broken is closed when the link is.
func (l *Link) Broken() <-chan struct{} { return l.broken }

// Err is why the link is broken, or nil.
func (l *Link) Err() error {
	select {
	case <-l.broken:
		return l.err
	default:
		return nil
	}
}

func (l *Link) fail(err error) {
	l.once.Do(func() {
		l.err = fmt.Errorf("%s: %w", l.Peer, err)
		close(l.broken)
		l.conn.Close()
	})
}

// Break tells the other side why the run ends, if it still listens, and closes the link.
func (l *Link) Break(why error) {
	const most = 4000
	text := why.Error()
	l.write.Lock()
	l.conn.SetWriteDeadline(time.Now().Add(time.Second))
	l.conn.Write(frame(frameEnd, []byte(text[:min(len(text), most)]))) // an error shows that it does not listen
	l.write.Unlock()
	l.fail(fmt.Errorf("ended: %w", why))
}

// Close closes the link.
func (l *Link) Close() { l.fail(net.ErrClosed) }
