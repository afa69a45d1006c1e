package commandline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string // the error, or nothing
	}{
		"no flag":              {nil, ""},
		"two forms":            {[]string{"--host", "a", "--size=3"}, ""},
		"unknown flag":         {[]string{"--hots=a"}, "unknown flag: --hots: see veil-x -h"},
		"one dash":             {[]string{"-size", "3"}, "-size: write --size: see veil-x -h"},
		"one dash and a value": {[]string{"-size=3"}, "-size=3: write --size=3: see veil-x -h"},
		"one dash, as if -h":   {[]string{"-host", "a"}, "-host: write --host: see veil-x -h"},
		"unknown, one dash": {[]string{"-nonsense"},
			`unknown shorthand flag: 'n' in -nonsense: see veil-x -h`},
		"no value": {[]string{"--host"},
			"flag needs an argument: --host: see veil-x -h"},
		"an argument": {[]string{"now"}, `unexpected argument "now": see veil-x -h`},
		"an argument like ours": {[]string{"--", "-size"},
			`unexpected argument "-size": see veil-x -h`},
	} {
		t.Run(name, func(t *testing.T) {
			flags := commandline.New("veil-x")
			flags.String("host", "", "`name` of a host")
			flags.Int("size", 0, "its size")
			var out strings.Builder
			got := ""
			if err := commandline.ParseAll(flags, "", tc.args, &out); err != nil {
				got = err.Error()
			}
			if got != tc.want || out.Len() > 0 {
				t.Errorf("error %q, output %q, want error %q", got, out.String(), tc.want)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	for _, arg := range []string{"-h", "--help"} {
		flags := commandline.New("veil-x")
		flags.String("host", "", "`name` of a host,\n"+strings.Repeat("and of its friends ", 9))
		var out strings.Builder
		err := commandline.Parse(flags, "Usage: veil-x\n\n", []string{arg}, &out)
		if !errors.Is(err, pflag.ErrHelp) ||
			!strings.HasPrefix(out.String(), "Usage: veil-x\n\n") ||
			!strings.Contains(out.String(), "--host name") {
			t.Errorf("%s: %v, %s", arg, err, &out)
		}
		for line := range strings.Lines(out.String()) {
			if len(strings.TrimSuffix(line, "\n")) > 100 {
				t.Errorf("%s: a line of more than 100 columns: %s", arg, line)
			}
		}
	}
}
