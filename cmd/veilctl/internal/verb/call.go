package verb

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
)

// Exit statuses.
const (
	ExitOK = iota
	ExitWrong
	ExitUsage
	ExitNoDaemon
	// ExitNotHere is the status of a verb about a pod that is not on this node.
	ExitNotHere
)

var (
	// ErrWrong is returned if something is wrong with the node or cluster and the output already
	// shows it. It is not printed.
	ErrWrong = errors.New("something is wrong")
	// ErrUsage matches errors in the command line.
	ErrUsage = errors.New("see veilctl -h")
	// ErrNoDaemon is matched if veild does not answer.
	ErrNoDaemon = errors.New("veild does not answer")
)

// ExitStatus returns the exit status of a program that ended with err.
func ExitStatus(err error) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrUsage):
		return ExitUsage
	case errors.Is(err, ErrNoDaemon):
		return ExitNoDaemon
	case errors.Is(err, admin.ErrNotHere):
		return ExitNotHere
	}
	return ExitWrong
}

// usageError is an error in the command line of one verb. Its text ends with the command that shows
// the help of the verb, instead of the text of ErrUsage.
type usageError struct {
	error
	path string
}

func (e usageError) Error() string {
	return strings.TrimSuffix(e.error.Error(), ErrUsage.Error()) + "see " + e.path + " -h"
}

func (e usageError) Unwrap() error { return e.error }

// withHelp returns err. An error in the command line of cmd then names the help of cmd.
func withHelp(cmd *cobra.Command, err error) error {
	if errors.Is(err, ErrUsage) && strings.HasSuffix(err.Error(), ErrUsage.Error()) {
		return usageError{err, cmd.CommandPath()}
	}
	return err
}

// Call is one call of a verb.
type Call struct {
	Ctx context.Context
	// Out receives the result, and Progress messages during the call.
	Out, Progress io.Writer
	// JSON reports whether to print JSON, for programs.
	JSON bool
	// Args are the arguments that are not flags.
	Args []string
	// Input is what Input.Read returned, such as the content of a file that a flag names.
	Input []byte
}

// Print writes v as JSON if c.JSON is set. Otherwise it calls show, which writes the result for
// people. It returns ErrWrong if wrong is set.
func (c Call) Print(v any, wrong bool, show func() error) error {
	if c.JSON {
		show = func() error { return PrintJSON(c.Out, v) }
	}
	if err := show(); err != nil || !wrong {
		return err
	}
	return ErrWrong
}
