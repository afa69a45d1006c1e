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

// NewLogger returns a logger that writes to w. level is debug, info, warn or error; empty means
// info. format is text or json; empty means text.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	levels := map[string]slog.Level{"": slog.LevelInfo, "debug": slog.LevelDebug,
		"info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, ok := levels[level]
	if !ok {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	var f LogFormat
	if err := f.UnmarshalText([]byte(format)); err != nil {
		return nil, err
	}
	return slog.New(f.Handler(w, l)), nil
}
