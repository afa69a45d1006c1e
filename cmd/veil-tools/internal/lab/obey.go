package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// obeyed is the answer to one line.
type obeyed struct {
	Result any    `json:"result,omitempty"`
	Error  string `json:"error,omitempty"`
}

// obey reads commands, one a line, words separated by spaces, runs them, and answers each with a
// line of JSON. Starting a process in a pod takes seconds on emulated machines. It ends with its
// standard input.
func obey(ctx context.Context, _ []string) (any, error) {
	known := map[string]command{"send": send, "knock": knock}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		answer := obeyed{Error: fmt.Sprintf("no such command: %q", lines.Text())}
		if len(words) > 0 && known[words[0]] != nil {
			result, err := known[words[0]](ctx, words[1:])
			answer = obeyed{Result: result}
			if err != nil {
				answer.Error = err.Error()
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			return nil, err
		}
	}
	return nil, lines.Err()
}
