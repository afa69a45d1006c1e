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
	// pods holds the name of veild's pod by node; "" if the node lacks its pod.
	pods map[string]string
	// args is the command line of veilctl, for output in JSON if json is set: as one document, or
	// as lines.
	args        []string
	json, lines bool
	// exec and stream run veilctl in a pod, as ExecVeilctl and ExecVeilctlTo of remote.Cluster do.
	exec   func(ctx context.Context, pod string, args ...string) ([]byte, error)
	stream func(ctx context.Context, out io.Writer, pod string, args ...string) error
}

// nodeAnswer is the answer of one node in the output for programs; fields are added, never renamed.
type nodeAnswer struct {
	Node string `json:"node"`
	// Answer is what the verb prints on that node. It is empty if there is an Error.
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`

	text string
	// status is the exit status of the node's veilctl, ExitNoDaemon if it did not run.
	status int
}

// nodeError is an error that another veilctl printed, or the reason why it did not run.
type nodeError struct {
	text   string
	status int
}

func (e *nodeError) Error() string { return e.text }

// Is reports whether target selects the same exit status.
func (e *nodeError) Is(target error) bool {
	return target == ErrUsage && e.status == ExitUsage ||
		target == ErrNoDaemon && e.status == ExitNoDaemon
}

// one prints the answer of one node, as the verb does on that node.
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

// write writes what one node printed; lines of JSON get the name of the node.
func (f fleet) write(w io.Writer, a nodeAnswer) error {
	if f.json && f.lines {
		lines := nodeLines{out: w, node: a.Node, json: true}
		_, err := lines.Write([]byte(a.text))
		return err
	}
	_, err := io.WriteString(w, a.text)
	return err
}

// all prints the answers of nodes in their order, and below them which nodes did not answer, and
// why. It returns ErrWrong unless all answered that all is well.
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

// askAll returns the answers of nodes in their order.
func (f fleet) askAll(ctx context.Context, nodes []string) ([]nodeAnswer, error) {
	answers := make([]nodeAnswer, len(nodes))
	var g errgroup.Group
	g.SetLimit(NodesAtOnce)
	for i, node := range nodes {
		g.Go(func() error { answers[i] = f.ask(ctx, node); return nil })
	}
	_ = g.Wait() // no node's answer is an error of the verb
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	// A command line that is wrong for each veilctl that ran is wrong.
	usage := slices.IndexFunc(answers, func(a nodeAnswer) bool { return a.status == ExitUsage })
	if usage >= 0 && !slices.ContainsFunc(answers, func(a nodeAnswer) bool {
		return a.status != ExitUsage && a.status != ExitNoDaemon
	}) {
		return nil, &nodeError{text: answers[usage].Error, status: ExitUsage}
	}
	return answers, nil
}

// merged prints one result of the answers of nodes. If none answered, it returns the error of one.
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

// printLines prints the lines of each node. A node that did not answer is a line with its error.
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

// ask returns the answer of one node, within NodeLimit.
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
	case len(out) == 0: // what it printed says more than its status
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

// printable removes from a node's text what could change the terminal: the node may have been taken
// over.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
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
		fmt.Fprintf(w, "==> %s <==\n%s", a.Node, a.text)
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
