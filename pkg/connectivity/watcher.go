package connectivity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/leak"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// session is a *remote.Session, or a fake of tests.
type session interface {
	Ask(ctx context.Context, line string, answer any) error
	Close()
}

// watcher reads the uplinks of a node. It is a session with `veil-tools link-watch` in a
// host-network pod, which answers each line with what it saw since the previous line.
type watcher struct {
	node    string
	session session
}

// startWatcher starts a watcher in the pod. The watcher runs until its session is closed.
func startWatcher(ctx context.Context, pod *remote.Pod, nodes []remote.Node,
	tunnelPort int) watcher {
	var addrs []string
	for _, n := range nodes {
		for _, a := range n.Addrs {
			addrs = append(addrs, a.String())
		}
	}
	return watcher{pod.Node, pod.Session(ctx, "veil-tools", "link-watch", "--nodes",
		strings.Join(addrs, ","), "--port", fmt.Sprint(tunnelPort))}
}

// part ends a part of the watch and returns what the uplinks carried in it. In the part that
// begins, the watcher searches for canary.
func (w watcher) part(ctx context.Context, canary string) (Seen, error) {
	var r leak.Result
	if err := w.session.Ask(ctx, canary, &r); err != nil {
		return Seen{}, fmt.Errorf("watch of %s: %w", w.node, err)
	}
	return newSeen(r), nil
}

// sender sends from a pod. It is a session with `veil-tools stdin-run`.
type sender struct{ session session }

func startSender(ctx context.Context, pod *remote.Pod) sender {
	return sender{pod.Session(ctx, "veil-tools", "stdin-run")}
}

// errUnanswered matches the error of send for messages that did not all come back.
var errUnanswered = errors.New("not delivered")

// send runs a sending command of veil-tools in the pod and returns how many messages were answered.
func (s sender) send(ctx context.Context, command string) (int, error) {
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  string          `json:"error"`
	}
	if err := s.session.Ask(ctx, command, &answer); err != nil {
		return 0, err
	}
	var sent remote.Sent
	if len(answer.Result) > 0 {
		if err := json.Unmarshal(answer.Result, &sent); err != nil {
			return 0, fmt.Errorf("what %s says: %w", command, err)
		}
	}
	if answer.Error != "" {
		return sent.Received, fmt.Errorf("%w: %s", errUnanswered, answer.Error)
	}
	return sent.Received, nil
}
