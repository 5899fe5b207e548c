package nodes

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// protocol names the handshake and the frames. Messages are those of one binary, whose hash the handshake compares.
const protocol = "harness-s nodes 1"

const (
	maxGreeting = 4 << 10
	greetWithin = 10 * time.Second
	nonceBytes  = 32
)

// The handshake: the leader's challenge, the node's hello, the leader's welcome. The last two are signed over the other
// side's nonce, so that neither side needs to send the token, and nothing recorded earlier is worth anything.
type challenge struct {
	Protocol string `json:"protocol"`
	Nonce    []byte `json:"nonce"`
}

type hello struct {
	Node   int    `json:"node"`
	Nodes  int    `json:"nodes"`
	Host   string `json:"host"`
	Binary string `json:"binary"` // hash of the executable
	Run    string `json:"run"`    // hash of what the process is told to do
	Nonce  []byte `json:"nonce"`
}

type welcome struct {
	Refused string `json:"refused"` // why the node may not join; empty: it joined
}

// signed is a greeting with the proof that its sender has the token.
type signed struct {
	Body []byte `json:"body"`
	MAC  []byte `json:"mac"`
}

// mac is the HMAC-SHA256 with the token of who speaks, the listener's nonce and the greeting.
func mac(token, from string, nonce, body []byte) []byte {
	m := hmac.New(sha256.New, []byte(token))
	for _, part := range [][]byte{[]byte(protocol), []byte(from), nonce, body} {
		fmt.Fprintf(m, "%d:", len(part))
		m.Write(part)
	}
	return m.Sum(nil)
}

var errToken = fmt.Errorf("it has another %s: set the same on every node", TokenVariable)

func newNonce() []byte {
	b := make([]byte, nonceBytes)
	rand.Read(b) // never fails
	return b
}

// executable is the hash of this executable: nodes that run different code would compute different numbers.
var executable = sync.OnceValues(func() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the executable: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("hash the executable: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash the executable: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
})

// say and hear exchange greetings, one JSON value a frame.
func say(conn net.Conn, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = conn.Write(frame(frameGreeting, raw))
	return err
}

func hear(conn net.Conn, v any) error {
	kind, raw, err := readFrame(conn, maxGreeting)
	if err != nil {
		return err
	}
	if kind != frameGreeting {
		return fmt.Errorf("not a greeting (kind %d)", kind)
	}
	return json.Unmarshal(raw, v)
}

func saySigned(conn net.Conn, token, from string, nonce []byte, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return say(conn, signed{body, mac(token, from, nonce, body)})
}

func hearSigned(conn net.Conn, token, from string, nonce []byte, v any) error {
	var s signed
	if err := hear(conn, &s); err != nil {
		return err
	}
	if !hmac.Equal(s.MAC, mac(token, from, nonce, s.Body)) {
		return errToken
	}
	return json.Unmarshal(s.Body, v)
}

const leaderSays, followerSays = "leader", "follower"
