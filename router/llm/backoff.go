package llm

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	firstWait     = 500 * time.Millisecond
	maxWait       = 30 * time.Second
	maxRetryAfter = time.Minute // what a server may ask for
)

// wait is how long to wait before try number try+1 (from 0): twice as long each time, half of it drawn at random so that
// clients that failed together do not come back together. The draw follows from the request alone. A server that says when
// to come back is obeyed, up to maxRetryAfter.
func wait(r Request, try int, retryAfter time.Duration) time.Duration {
	sum := r.sum()
	rng := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:8]), uint64(try)))
	d := min(firstWait<<min(try, 16), maxWait)
	return max(d/2+time.Duration(rng.Int64N(int64(d/2))), min(retryAfter, maxRetryAfter))
}

// retryAfter reads the header of that name: seconds, or a date. Zero where there is none that can be read.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(v, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, min(at.Sub(now), maxRetryAfter))
	}
	return 0
}

// sleep waits in real time.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
