package verb

import (
	"context"
	"errors"
	"io"
)

// Exit statuses.
const (
	ExitOK = iota
	ExitWrong
	ExitUsage
	ExitNoDaemon
)

var (
	// ErrWrong is the error of a command whose output already reports the problem.
	ErrWrong = errors.New("something is wrong")
	// ErrUsage matches errors of the command line.
	ErrUsage = errors.New("see veilctl -h")
	// ErrNoDaemon matches the error for a veild that does not answer.
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
	}
	return ExitWrong
}

// Call is one call of a verb.
type Call struct {
	Ctx context.Context
	// Out is for the result, Progress for messages meanwhile.
	Out, Progress io.Writer
	// JSON reports whether the output is for programs.
	JSON bool
	// Args are the arguments that are not flags.
	Args []string
	// Input is what the flags of a verb of OnNodeWith name, such as the content of a file.
	Input []byte
}

// Print writes v as JSON, or calls show to write it for people. It returns ErrWrong if wrong is
// set.
func (c Call) Print(v any, wrong bool, show func() error) error {
	if c.JSON {
		show = func() error { return PrintJSON(c.Out, v) }
	}
	if err := show(); err != nil || !wrong {
		return err
	}
	return ErrWrong
}
