package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// fleet runs one command line in the pods of veild.
type fleet struct {
	// pods holds the name of veild's pod by node. The name is "" if the node has no such pod.
	pods map[string]string
	// args is the command line of veilctl. json reports whether it prints JSON: objects on lines if
	// lines is set, otherwise one document.
	args        []string
	json, lines bool
	// exec and stream run veilctl in a pod, like ExecVeilctl and ExecVeilctlTo of remote.Cluster.
	exec   func(ctx context.Context, pod string, args ...string) ([]byte, error)
	stream func(ctx context.Context, out io.Writer, pod string, args ...string) error
}

// nodeAnswer is the answer of one node. Its JSON is output for programs: fields are added, never
// renamed.
type nodeAnswer struct {
	Node string `json:"node"`
	// Answer is the JSON that the verb printed on the node. It is empty if Error is not.
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`

	text string
	// status is the exit status of the node's veilctl, or ExitNoDaemon if veilctl did not run.
	status int
}

// nodeError is the error that a node's veilctl printed, or the reason why it did not run.
type nodeError struct {
	text   string
	status int
}

func (e *nodeError) Error() string { return e.text }

// Is reports whether target is the sentinel of e's exit status.
func (e *nodeError) Is(target error) bool {
	return target == ErrUsage && e.status == ExitUsage ||
		target == ErrNoDaemon && e.status == ExitNoDaemon
}

// one prints the answer of one node in the same form as on that node.
func (f fleet) one(c Call, node string) error {
	a := f.ask(c.Ctx, node)
	if a.Error != "" {
		return &nodeError{text: node + ": " + a.Error, status: a.status}
	}
	err := f.write(c.Out, a)
	if err == nil && a.status != ExitOK {
		err = ErrWrong
	}
	return err
}

// write writes the output of one node. It adds the name of the node to lines of JSON.
func (f fleet) write(w io.Writer, a nodeAnswer) error {
	if f.json && f.lines {
		lines := nodeLines{out: w, node: a.Node, json: true}
		_, err := lines.Write([]byte(a.text))
		return err
	}
	_, err := io.WriteString(w, a.text)
	return err
}

// all prints the answers in the order of nodes, then the nodes that did not answer, and why. It
// returns ErrWrong unless veilctl succeeded on all nodes.
func (f fleet) all(c Call, nodes []string) error {
	answers, err := f.askAll(c.Ctx, nodes)
	if err != nil {
		return err
	}

	wrong := len(answers) == 0
	for _, a := range answers {
		wrong = wrong || a.Error != "" || a.status != ExitOK
	}
	if f.json && f.lines {
		return f.printLines(c, answers, wrong)
	}
	return c.Print(map[string]any{"nodes": answers}, wrong, func() error {
		return showAnswers(c.Out, answers)
	})
}

// askAll runs the command line on all nodes, and returns the answers in the order of nodes.
func (f fleet) askAll(ctx context.Context, nodes []string) ([]nodeAnswer, error) {
	answers := make([]nodeAnswer, len(nodes))
	var g errgroup.Group
	g.SetLimit(NodesAtOnce)
	for i, node := range nodes {
		g.Go(func() error { answers[i] = f.ask(ctx, node); return nil })
	}
	_ = g.Wait() // the functions return no errors
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	// If every veilctl that ran refused the command line, the command line is wrong.
	usage := slices.IndexFunc(answers, func(a nodeAnswer) bool { return a.status == ExitUsage })
	if usage >= 0 && !slices.ContainsFunc(answers, func(a nodeAnswer) bool {
		return a.status != ExitUsage && a.status != ExitNoDaemon
	}) {
		return nil, &nodeError{text: answers[usage].Error, status: ExitUsage}
	}
	return answers, nil
}

// merged passes the answers of nodes, and the errors of the others, to show. If no node answered,
// it returns the first error instead.
func (f fleet) merged(c Call, nodes []string,
	show func(c Call, answers []json.RawMessage, missing []string) error) error {
	all, err := f.askAll(c.Ctx, nodes)
	if err != nil {
		return err
	}
	var answers []json.RawMessage
	var missing []string
	for _, a := range all {
		if a.Error == "" {
			answers = append(answers, a.Answer)
		} else {
			missing = append(missing, a.Node+": "+a.Error)
		}
	}
	if len(answers) == 0 && len(all) > 0 {
		return &nodeError{text: missing[0], status: all[0].status}
	}
	return show(c, answers, missing)
}

// printLines prints the JSON lines of each node. For a node that did not answer, it prints a line
// with the error.
func (f fleet) printLines(c Call, answers []nodeAnswer, wrong bool) error {
	for _, a := range answers {
		var err error
		if a.Error != "" {
			err = json.NewEncoder(c.Out).Encode(a)
		} else {
			err = f.write(c.Out, a)
		}
		if err != nil {
			return err
		}
	}
	if wrong {
		return ErrWrong
	}
	return nil
}

// ask runs the command line on one node, for at most NodeLimit, and returns the answer.
func (f fleet) ask(ctx context.Context, node string) nodeAnswer {
	a := nodeAnswer{Node: node, status: ExitNoDaemon}
	pod := f.pods[node]
	if pod == "" {
		a.Error = "no pod of veild on this node"
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, NodeLimit)
	defer cancel()

	out, err := f.exec(ctx, pod, f.args...)
	var ended *remote.CommandError
	switch {
	case err == nil:
		a.status = ExitOK
	case !errors.As(err, &ended):
		a.Error = printable(err.Error())
		return a
	case len(out) == 0: // without output, the error is the answer
		a.status = ended.Status
		a.Error = printable(strings.TrimPrefix(ended.Stderr, "veilctl: "))
		if a.Error == "" {
			a.Error = ended.Error()
		}
		return a
	default:
		a.status = ended.Status
	}

	a.text = printable(string(out))
	switch {
	case !f.json, f.lines:
	case json.Valid([]byte(a.text)):
		a.Answer = json.RawMessage(a.text)
	default:
		a.status, a.Error = ExitWrong, "its answer is not JSON"
	}
	return a
}

// printable replaces control characters in text from a node, except newlines and tabs. The node may
// have been taken over, and such characters could control the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// notHeads indents the lines of an answer that look like the name of a node: a node that was taken
// over does not answer for others.
func notHeads(text string) string {
	text = strings.ReplaceAll(text, "\n==>", "\n  ==>")
	if strings.HasPrefix(text, "==>") {
		text = "  " + text
	}
	return text
}

// showAnswers prints the answer of each node below its name. Nodes with the same error share a
// line.
func showAnswers(w io.Writer, answers []nodeAnswer) error {
	answered := 0
	var errs []string
	nodes := map[string][]string{}
	for _, a := range answers {
		if a.Error != "" {
			if nodes[a.Error] == nil {
				errs = append(errs, a.Error)
			}
			nodes[a.Error] = append(nodes[a.Error], a.Node)
			continue
		}
		if answered++; answered > 1 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "==> %s <==\n%s", a.Node, notHeads(a.text))
	}

	if answered == len(answers) && answered > 0 {
		return nil
	}
	if answered > 0 {
		fmt.Fprintln(w)
	}
	for _, err := range errs {
		fmt.Fprintf(w, "%s: %s\n", Some(nodes[err]), strings.ReplaceAll(err, "\n", "; "))
	}
	_, err := fmt.Fprintf(w, "%d of %d nodes answered\n", answered, len(answers))
	return err
}
