package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/pkg/remote"
)

// logLines is the maximum number of lines that are kept of each container's log.
const logLines = 2000

// nodeState is a shell command that prints a node's network. It prints no keys, because wg(8) hides
// them.
const nodeState = `ip -d address; ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft -s list ruleset; wg show; ` +
	`ls -l /run/kubeveil /etc/cni/net.d; journalctl --no-pager -n 200 -u kubelet -u containerd; dmesg | tail -n 50`

// describe writes information about a failure to the folder dir: nodes, the pods of the suite and
// of kube-system with events and logs, and with a Lab the network of each node. It skips what it
// cannot read.
func (s *Session) describe(ctx context.Context, dir string) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.Log.Warn("no artefacts", "err", err)
		return
	}

	write := func(name string, content []byte, err error) {
		if err != nil {
			content = fmt.Appendf(content, "\nincomplete: %v\n", err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			s.Log.Warn("no artefact", "name", name, "err", err)
		}
	}

	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if nodes != nil {
		content, _ := yaml.Marshal(nodes.Items)
		write("nodes.yaml", content, err)
		for _, n := range nodes.Items {
			if s.Lab != nil {
				out, err := s.Lab.Exec(ctx, n.Name, nodeState)
				write("node-"+n.Name+".txt", out, err)
			}
		}
	}

	spaces := []string{metav1.NamespaceSystem}
	for _, n := range []*remote.Namespace{s.Shared, s.own} {
		if n != nil {
			spaces = append(spaces, n.Name)
		}
	}

	for _, space := range spaces {
		s.describeNamespace(ctx, space, write)
	}

	if s.Lab != nil {
		seen := s.Lab.Oracle().Seen()
		text := fmt.Sprintf("%d frames, %d plaintext: %v\n", seen.Frames, seen.Plaintext,
			seen.Kinds)
		for _, e := range seen.Examples {
			text += "\n" + e.String()
		}
		write("oracle.txt", []byte(text), nil)
	}
}

func (s *Session) describeNamespace(ctx context.Context, space string,
	write func(string, []byte, error)) {
	core := s.Client.CoreV1()
	pods, err := core.Pods(space).List(ctx, metav1.ListOptions{})
	if pods == nil {
		write(space+".txt", nil, err)
		return
	}
	content, _ := yaml.Marshal(pods.Items)
	write(space+"-pods.yaml", content, err)
	events, err := core.Events(space).List(ctx, metav1.ListOptions{})
	var text []byte
	if events != nil {
		for _, e := range events.Items {
			text = fmt.Appendf(text, "%s %s/%s %s: %s\n", e.LastTimestamp.Format("15:04:05"),
				e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	write(space+"-events.txt", text, err)
	lines := int64(logLines)
	for _, p := range pods.Items {
		for _, c := range p.Spec.Containers {
			log, err := core.Pods(space).GetLogs(p.Name,
				&corev1.PodLogOptions{Container: c.Name, TailLines: &lines}).DoRaw(ctx)
			write(fmt.Sprintf("%s-%s-%s.log", space, p.Name, c.Name), log, err)
		}
	}
}
