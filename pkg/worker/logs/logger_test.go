package logs

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"
)

func TestRedact(t *testing.T) {
	key := bytes.Repeat([]byte{0xA7, 3}, 16)
	for _, tc := range []struct{ name, in, want string }{
		{"hexadecimal", `failed to parse line "private_key:` + hex.EncodeToString(key) + `"`,
			`failed to parse line "private_key:redacted"`},
		{"base64", "key pwOnA6cDpwOnA6cDpwOnA6cDpwOnA6cDpwOnA6cDpwM= end", "key redacted end"},
		{"a peer's short name", "peer(Je36…6GCU) - Starting", "peer(Je36…6GCU) - Starting"},
		{"an address", "from [fd42:1234:5678:9abc::1]:51820",
			"from [fd42:1234:5678:9abc::1]:51820"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Redact(tc.in); got != tc.want {
				t.Errorf("redact: %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLimiter(t *testing.T) {
	now := time.Unix(1, 0)
	l := &limiter{now: func() time.Time { return now }}
	allowed := 0
	for range 3 * linesPerSecond {
		if ok, _ := l.allow(); ok {
			allowed++
		}
	}
	now = now.Add(time.Second)
	ok, dropped := l.allow()
	if allowed != linesPerSecond || !ok || dropped != 2*linesPerSecond {
		t.Errorf("allowed %d, then %v after %d dropped", allowed, ok, dropped)
	}
}
