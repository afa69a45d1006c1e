package commandline

import (
	"fmt"
	"io"
	"log/slog"
)

// LogFormat is the format of a program's log, as the value of a flag such as --log-format. The zero
// value means LogText.
type LogFormat string

// Formats of a log. A line of LogJSON is one JSON object.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// LogFormatUsage is the usage of a flag with a LogFormat.
const LogFormatUsage = "`format` text or json"

// MarshalText returns the name of the format.
func (f LogFormat) MarshalText() ([]byte, error) { return []byte(f), nil }

// UnmarshalText accepts the name of a format. Empty text means LogText.
func (f *LogFormat) UnmarshalText(text []byte) error {
	switch got := LogFormat(text); got {
	case "":
		*f = LogText
	case LogText, LogJSON:
		*f = got
	default:
		return fmt.Errorf("log format %q: want text or json", text)
	}
	return nil
}

// Handler returns a handler that writes records of at least level to w in the format f.
func (f LogFormat) Handler(w io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level}
	if f == LogJSON {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}
