package telemetry

import (
	"fmt"
	"io"
	"log/slog"
)

// NewLogger makes a logger that writes to w. level is debug, info, warn or
// error; format is text or json. An empty level means info, and an empty format text.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	levels := map[string]slog.Level{"": slog.LevelInfo, "debug": slog.LevelDebug,
		"info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, ok := levels[level]
	if !ok {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("log format %q: want text or json", format)
}
