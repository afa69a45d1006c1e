package commandline

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// columns is the width of help texts.
const columns = 100

// New returns an empty set of flags for a program, or for one of its verbs. name is the command
// that users type, such as "veil-csi cleanup".
func New(name string) *pflag.FlagSet {
	return pflag.NewFlagSet(name, pflag.ContinueOnError)
}

// Parse parses the flags in args. For -h or --help it writes the help to out and returns
// pflag.ErrHelp. The text of any other error names the command that shows the help.
func Parse(flags *pflag.FlagSet, usage string, args []string, out io.Writer) error {
	flags.Usage = func() {} // otherwise pflag prints the usage, even for -host
	err := TwoDashes(flags, args)
	if err == nil {
		err = flags.Parse(args)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pflag.ErrHelp):
		_, _ = io.WriteString(out, Help(flags, usage))
		return pflag.ErrHelp
	}
	return fmt.Errorf("%w: see %s -h", err, flags.Name())
}

// Help returns usage, followed by a list of the flags.
func Help(flags *pflag.FlagSet, usage string) string {
	return usage + flags.FlagUsagesWrapped(columns)
}

// ParseAll is like Parse, but returns an error if there are arguments other than flags.
func ParseAll(flags *pflag.FlagSet, usage string, args []string, out io.Writer) error {
	if err := Parse(flags, usage, args, out); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: see %s -h", flags.Arg(0), flags.Name())
	}
	return nil
}

// TwoDashes returns an error if args has a flag of several letters with one dash. Package pflag
// would read such a flag as several flags of one letter, for example -host as -h.
func TwoDashes(flags *pflag.FlagSet, args []string) error {
	for _, arg := range args {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "-"), "=")
		switch {
		case arg == "--":
			return nil
		case len(name) > 1 && strings.HasPrefix(arg, "-") && flags.Lookup(name) != nil:
			return fmt.Errorf("%s: write -%[1]s", arg)
		}
	}
	return nil
}
