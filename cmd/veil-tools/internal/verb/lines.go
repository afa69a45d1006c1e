package verb

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"time"
)

// Command runs one verb until it is done or ctx ends. Its result is printed as one line of JSON.
type Command func(ctx context.Context, args []string) (any, error)

// Printing returns a verb that runs c and prints its result, even if c also returns an error.
func Printing(c Command, short string) Verb {
	return Verb{Short: short, Run: func(ctx context.Context, args []string) error {
		out, err := c(ctx, args)
		if out != nil {
			_ = json.NewEncoder(os.Stdout).Encode(out)
		}
		return err
	}}
}

// Millis returns a duration in milliseconds, the unit of results.
func Millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// AnswerLines answers each line of in with a line of JSON. It returns at the end of in, and at the
// first error.
func AnswerLines(in io.Reader, out io.Writer, answer func(line string) (any, error)) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		v, err := answer(lines.Text())
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(v); err != nil {
			return err
		}
	}
	return lines.Err()
}
