package lab

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// obeyed is the answer to one line.
type obeyed struct {
	Result any    `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// obey runs the commands on standard input, one per line with words separated by spaces. It answers
// each with a line of JSON, and returns at the end of the input. One process serves many commands,
// because starting a process in a pod takes seconds on emulated machines.
func obey(ctx context.Context, args []string) (any, error) {
	if err := flagsOf("stdin-run").Parse(args); err != nil {
		return nil, err
	}
	known := map[string]verb.Command{"echo-send": send, "tcp-knock": knock}
	return nil, verb.AnswerLines(os.Stdin, os.Stdout, func(line string) (any, error) {
		words := strings.Fields(line)
		if len(words) == 0 || known[words[0]] == nil {
			return obeyed{Error: fmt.Sprintf("no such command: %q", line)}, nil
		}
		result, err := known[words[0]](ctx, words[1:])
		answer := obeyed{Result: result}
		if err != nil {
			answer.Error = err.Error()
		}
		return answer, nil
	})
}
