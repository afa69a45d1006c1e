package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry/admin"
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
	// find returns the present pods, like VeildPods of remote.Cluster.
	find func(ctx context.Context) (map[string]string, error)
	// since reports whether the verb has the flag --since, with which it prints only later lines.
	since bool
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
		target == ErrNoDaemon && e.status == ExitNoDaemon ||
		target == admin.ErrNotHere && e.status == ExitNotHere
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

// all prints the answers in the order of nodes as they arrive, then the nodes that did not answer,
// and why. It returns ErrWrong unless veilctl succeeded on all nodes.
func (f fleet) all(c Call, nodes []string) error {
	if f.json && !f.lines {
		answers, err := f.askAll(c.Ctx, nodes)
		if err != nil {
			return err
		}
		wrong := len(answers) == 0 || slices.ContainsFunc(answers, nodeAnswer.wrong)
		return c.Print(map[string]any{"nodes": answers}, wrong, nil)
	}

	p := &printer{fleet: f, out: c.Out, nodes: map[string][]string{}}
	err := f.askEach(c.Ctx, nodes, p.add)
	if err == nil {
		err = p.end()
	}
	if err == nil && (p.wrong || p.count == 0) {
		err = ErrWrong
	}
	return err
}

// wrong reports whether veilctl did not succeed on the node.
func (a nodeAnswer) wrong() bool { return a.Error != "" || a.status != ExitOK }

// askAll runs the command line on all nodes, and returns the answers in the order of nodes. It
// leaves out nodes without the pod that the command line names, if another node has it.
func (f fleet) askAll(ctx context.Context, nodes []string) (answers []nodeAnswer, err error) {
	answers = []nodeAnswer{}
	err = f.askEach(ctx, nodes, func(a nodeAnswer) error {
		answers = append(answers, a)
		return nil
	})
	return answers, err
}

// askEach runs the command line on all nodes, and passes the answers to show in the order of nodes.
// At most NodesAtOnce answers are in memory. A node without the pod that the command line names is
// left out. If no node has the pod, or all refuse the command line, askEach returns an error.
func (f fleet) askEach(ctx context.Context, nodes []string, show func(nodeAnswer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make([]chan nodeAnswer, len(nodes))
	for i := range answers {
		answers[i] = make(chan nodeAnswer, 1)
	}
	room := make(chan struct{}, NodesAtOnce)
	go func() {
		for i, node := range nodes {
			room <- struct{}{}
			go func() { answers[i] <- f.ask(ctx, node) }()
		}
	}()

	var err error
	said := map[int]string{} // the first error of a veilctl that ran, by exit status
	for i := range nodes {
		a := <-answers[i]
		if _, has := said[a.status]; !has && a.status != ExitNoDaemon {
			said[a.status] = a.Error
		}
		if err == nil && ctx.Err() == nil && a.status != ExitNotHere {
			err = show(a)
		}
		if err != nil {
			cancel()
		}
		<-room
	}
	if len(said) == 1 && err == nil && ctx.Err() == nil {
		if text, all := said[ExitUsage]; all {
			return &nodeError{text: text, status: ExitUsage}
		}
		if text, all := said[ExitNotHere]; all {
			return nowhere(text)
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// nowhere returns the error for a pod that no node has. said is the error of one of the nodes.
func nowhere(said string) error {
	return &nodeError{text: "no node has the pod; one of them: " + said, status: ExitNotHere}
}

// merged passes the answers of nodes, and the errors of the others, to show. If no node answered,
// it returns the first error instead.
func (f fleet) merged(c Call, nodes []string,
	show func(c Call, answers []Answer, missing []string) error) error {
	all, err := f.askAll(c.Ctx, nodes)
	if err != nil {
		return err
	}
	var answers []Answer
	var missing []string
	for _, a := range all {
		if a.Error == "" {
			answers = append(answers, Answer{a.Node, a.Answer})
		} else {
			missing = append(missing, a.Node+": "+a.Error)
		}
	}
	if len(answers) == 0 && len(all) > 0 {
		return &nodeError{text: missing[0], status: all[0].status}
	}
	return show(c, answers, missing)
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
		a.Error = err.Error()
		return a
	case len(out) == 0: // without output, the error is the answer
		a.status = ended.Status
		a.Error = strings.TrimPrefix(ended.Stderr, "veilctl: ")
		if a.Error == "" {
			a.Error = ended.Error()
		}
		return a
	default:
		a.status = ended.Status
	}

	if !f.json {
		a.text = remote.Printable(string(out))
		return a
	}
	a.text = remote.PrintableJSON(string(out))
	switch {
	case f.lines:
	case json.Valid([]byte(a.text)):
		a.Answer = json.RawMessage(a.text)
	default:
		a.status, a.Error = ExitWrong, "its answer is not JSON"
	}
	return a
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

// printer prints the answers of nodes: each below the name of its node or, for programs, as lines.
type printer struct {
	fleet
	out io.Writer
	// count counts the answers, answered those without an error.
	count, answered int
	// wrong reports whether veilctl did not succeed on a node.
	wrong bool
	// errs are the different errors, and nodes their nodes.
	errs  []string
	nodes map[string][]string
}

func (p *printer) add(a nodeAnswer) error {
	p.count++
	p.wrong = p.wrong || a.wrong()
	if a.Error != "" && p.json {
		return json.NewEncoder(p.out).Encode(a)
	}
	if a.Error != "" {
		if p.nodes[a.Error] == nil {
			p.errs = append(p.errs, a.Error)
		}
		p.nodes[a.Error] = append(p.nodes[a.Error], a.Node)
		return nil
	}

	if p.json {
		return p.write(p.out, a)
	}
	if p.answered++; p.answered > 1 {
		fmt.Fprintln(p.out)
	}
	_, err := fmt.Fprintf(p.out, "==> %s <==\n%s", a.Node, notHeads(a.text))
	return err
}

// end prints which nodes did not answer. Nodes with the same error share a line.
func (p *printer) end() error {
	if p.json || p.answered == p.count && p.answered > 0 {
		return nil
	}
	if p.answered > 0 {
		fmt.Fprintln(p.out)
	}
	for _, err := range p.errs {
		fmt.Fprintf(p.out, "%s: %s\n", Some(p.nodes[err]), strings.ReplaceAll(err, "\n", "; "))
	}
	_, err := fmt.Fprintf(p.out, "%d of %d nodes answered\n", p.answered, p.count)
	return err
}
