package telemetry

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

// NewLogger returns a logger that writes to w. level is debug, info, warn or error; empty means
// info. format is text or json; empty means text.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	levels := map[string]slog.Level{"": slog.LevelInfo, "debug": slog.LevelDebug,
		"info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, ok := levels[level]
	if !ok {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", level)
	}
	var f commandline.LogFormat
	if err := f.UnmarshalText([]byte(format)); err != nil {
		return nil, err
	}
	return slog.New(f.Handler(w, l)), nil
}
