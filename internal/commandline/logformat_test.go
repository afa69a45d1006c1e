package commandline_test

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/commandline"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestLogFormat(t *testing.T) {
	for args, want := range map[string]string{
		"":                  "level=WARN msg=yes peer=b\n",
		"--log-format text": "level=WARN msg=yes peer=b\n",
		"--log-format json": `"level":"WARN","msg":"yes","peer":"b"}` + "\n",
	} {
		flags := commandline.New("veil-x")
		var f commandline.LogFormat
		flags.TextVar(&f, "log-format", commandline.LogText, commandline.LogFormatUsage)
		errtest.Must(t, commandline.ParseAll(flags, "", strings.Fields(args), nil))

		var out strings.Builder
		log := slog.New(f.Handler(&out, slog.LevelWarn))
		log.Info("no")
		log.Warn("yes", "peer", "b")
		if got := out.String(); !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: logged %q, want %q at the end", args, got, want)
		}
		if isJSON := json.Valid([]byte(out.String())); isJSON != strings.Contains(args, "json") {
			t.Errorf("%q: a line of JSON: %v", args, isJSON)
		}
	}
}

func TestUnknownLogFormat(t *testing.T) {
	flags := commandline.New("veil-x")
	var f commandline.LogFormat
	flags.TextVar(&f, "log-format", commandline.LogText, commandline.LogFormatUsage)
	err := commandline.ParseAll(flags, "", []string{"--log-format=xml"}, nil)
	if err == nil || !strings.Contains(err.Error(), "want text or json") {
		t.Errorf("%v", err)
	}
}

func TestNewLogger(t *testing.T) {
	var b strings.Builder
	log, err := commandline.NewLogger(&b, "warn", "json")
	errtest.Must(t, err)
	log.Info("no")
	log.Warn("yes", "peer", "b")
	if got := b.String(); strings.Contains(got, `"no"`) || !strings.Contains(got, `"peer":"b"`) {
		t.Errorf("logged %q", got)
	}
	for _, bad := range [][2]string{{"loud", "text"}, {"info", "xml"}} {
		if _, err := commandline.NewLogger(&b, bad[0], bad[1]); err == nil ||
			!strings.Contains(err.Error(), "want") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
