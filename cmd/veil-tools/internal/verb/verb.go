// Package verb defines a verb of veil-tools, and how it reads its command line.
package verb

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

// program is the prefix of the name of a verb's flag set.
const program = "veil-tools "

// Verb is one verb of veil-tools.
type Verb struct {
	// Short describes the verb in one line.
	Short string
	// Run runs the verb until it is done or ctx ends. It returns pflag.ErrHelp after it wrote its
	// help.
	Run func(ctx context.Context, args []string) error
}

// Verbs maps names to verbs. A name consists of a protocol or object and an action: "tcp-hold".
type Verbs map[string]Verb

// Flags returns an empty flag set for the verb called name.
func Flags(name string) *pflag.FlagSet { return commandline.New(program + name) }

// Parse parses the command line args of a verb whose flag set is flags. It writes help to standard
// output. arguments describes the arguments after the flags. If it is empty, arguments are an
// error.
func (v Verbs) Parse(flags *pflag.FlagSet, arguments string, args []string) error {
	usage := v[strings.TrimPrefix(flags.Name(), program)].Short + ".\n\nUsage:\n  " + flags.Name()
	if flags.HasFlags() {
		usage += " [flags]"
	}
	if arguments != "" {
		usage += " " + arguments
	}
	usage += "\n"
	if flags.HasFlags() {
		usage += "\nFlags:\n"
	}

	if arguments == "" {
		return commandline.ParseAll(flags, usage, args, os.Stdout)
	}
	return commandline.Parse(flags, usage, args, os.Stdout)
}
