// Package verb defines a verb of veil-tools, and how it reads its command line.
package verb

import (
	"context"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/internal/commandline"
)

// program begins the name of a set of flags.
const program = "veil-tools "

// Verb is one verb of veil-tools.
type Verb struct {
	// Short describes it in one line.
	Short string
	// Run runs until it is done or ctx ends. pflag.ErrHelp means that it wrote its help.
	Run func(ctx context.Context, args []string) error
}

// Verbs are verbs by name. A name has the protocol, or the object, and the act: "tcp-hold".
type Verbs map[string]Verb

// Flags returns an empty set of flags for the verb called name.
func Flags(name string) *pflag.FlagSet { return commandline.New(program + name) }

// Parse reads the command line of the verb whose Flags are flags, and writes its help to standard
// output. arguments describes the arguments after the flags. Empty means that there are none, and
// Parse refuses them.
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
