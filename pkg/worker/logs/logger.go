package logs

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// keyText matches text that may be a key of 32 bytes, or a large part of it, in hexadecimal or
// base64. Messages can contain keys, because the library quotes input lines that it cannot parse.
var keyText = regexp.MustCompile(`[0-9A-Fa-f]{24,}|[A-Za-z0-9+/]{40,}=?`)

// Redact returns s with each text that may be a key replaced.
func Redact(s string) string { return keyText.ReplaceAllString(s, "redacted") }

// NewLogger returns a logger for wireguard-go that writes to log. It writes errors as warnings, at
// most linesPerSecond, and other messages as debug messages if debug is true.
func NewLogger(log *slog.Logger, debug bool) *device.Logger {
	l := &limiter{now: time.Now}
	out := &device.Logger{Verbosef: device.DiscardLogf}
	out.Errorf = func(format string, args ...any) {
		if ok, dropped := l.allow(); ok {
			log.Warn("wireguard", "message", message(format, args), "suppressed", dropped)
		}
	}
	if debug {
		out.Verbosef = func(format string, args ...any) {
			log.Debug("wireguard", "message", message(format, args))
		}
	}
	return out
}

func message(format string, args []any) string {
	return Redact(strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// linesPerSecond bounds the log lines, for example about a peer that cannot be reached.
const linesPerSecond = 10

// limiter allows linesPerSecond log lines in each second.
type limiter struct {
	now func() time.Time

	mu      sync.Mutex
	second  time.Time
	used    int
	dropped int
}

// allow reports whether a line may be written, and how many were suppressed before it.
func (l *limiter) allow() (bool, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.now(); now.Sub(l.second) >= time.Second {
		l.second, l.used = now, 0
	}
	if l.used == linesPerSecond {
		l.dropped++
		return false, 0
	}
	l.used++
	dropped := l.dropped
	l.dropped = 0
	return true, dropped
}
