package lab

import (
	"bufio"
	"encoding/json"
	"io"
)

// answerLines answers each line of in with a line of JSON. It returns at the end of in, and at the
// first error.
func answerLines(in io.Reader, out io.Writer, answer func(line string) (any, error)) error {
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
