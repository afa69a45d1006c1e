package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// Exec runs a command in the pod until it ends and returns its standard output, even with an
// error. The error ends with what the command wrote to standard error. If the command exited with a
// status other than 0, errors.As finds a k8s.io/client-go/util/exec.CodeExitError. Exec returns
// when ctx ends; the command may still run until the pod ends.
func (p *Pod) Exec(ctx context.Context, command ...string) ([]byte, error) {
	var out bytes.Buffer
	err := p.ExecStream(ctx, nil, &out, command...)
	return out.Bytes(), err
}

// ExecStream is Exec, but the command reads stdin, which may be nil, and its standard output is
// copied to stdout as it arrives.
func (p *Pod) ExecStream(ctx context.Context, stdin io.Reader, stdout io.Writer,
	command ...string) error {
	n := p.Namespace
	var stderr bytes.Buffer
	err := n.Cluster.stream(ctx, execIn{
		namespace: n.Name, pod: p.Name, container: container, command: command,
		stdin: stdin, stdout: stdout, stderr: &stderr, spdy: true,
	})
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		return fmt.Errorf("pod %s: %s: %w: %s", p.Name, strings.Join(command, " "), err, said)
	}
	return nil
}

// execIn is a command in a container and its streams. stdin may be nil. If spdy is true and the
// websocket is refused, SPDY is tried, as in kubectl: a proxy or an older API server may not
// support websockets.
type execIn struct {
	namespace, pod, container string
	command                   []string
	stdin                     io.Reader
	stdout, stderr            io.Writer
	spdy                      bool
}

// stream runs a command until it ends or ctx does.
func (c *Cluster) stream(ctx context.Context, e execIn) error {
	opts := &corev1.PodExecOptions{
		Container: e.container, Command: e.command,
		Stdin: e.stdin != nil, Stdout: true, Stderr: true,
	}
	url := c.Client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(e.namespace).Name(e.pod).SubResource("exec").
		VersionedParams(opts, scheme.ParameterCodec).URL()
	cfg := rest.CopyConfig(c.Config)
	cfg.Timeout = 0 // a stream

	streams := remotecommand.StreamOptions{Stdin: e.stdin, Stdout: e.stdout, Stderr: e.stderr}
	socket, err := remotecommand.NewWebSocketExecutor(cfg, "GET", url.String())
	if err != nil {
		return err
	}
	if !e.spdy {
		return socket.StreamWithContext(ctx, streams)
	}

	spdy, err := remotecommand.NewSPDYExecutor(cfg, "POST", url)
	if err != nil {
		return err
	}
	either, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	return either.StreamWithContext(ctx, streams)
}

// canaryEnv is the environment variable of pods that holds the canary for veil-tools.
const canaryEnv = "LAB_CANARY"

// Message describes the messages that Send sends.
type Message struct {
	// Proto is "tcp" or "udp".
	Proto string
	To    netip.AddrPort
	// Count is the number of messages; 0 means 3. Size is the size of each in bytes; 0 means 400.
	Count, Size int
	// Timeout bounds the whole exchange. 0 means 10 s.
	Timeout time.Duration
	// Canary fills the payloads. "" means the canary of the cluster.
	Canary string
}

// Sent is the report of veil-tools about the messages that it sent.
type Sent = toolresult.Sent

// Send sends messages from the pod to an echo server. It returns an error unless every message came
// back unchanged. The pod must run the tools image.
func (p *Pod) Send(ctx context.Context, m Message) (Sent, error) {
	m.Count = cmp.Or(m.Count, 3)
	m.Size = cmp.Or(m.Size, 400)
	m.Timeout = cmp.Or(m.Timeout, 10*time.Second)
	command := []string{"veil-tools", "echo-send", "--proto", m.Proto, "--to", m.To.String(),
		"--count", fmt.Sprint(m.Count), "--size", fmt.Sprint(m.Size),
		"--timeout", m.Timeout.String()}
	if m.Canary != "" {
		command = append(command, "--canary", m.Canary)
	}
	var sent Sent
	out, err := p.Exec(ctx, command...)
	if err != nil {
		return sent, err
	}
	if err := json.Unmarshal(out, &sent); err != nil {
		return sent, fmt.Errorf("output of veil-tools echo-send: %w", err)
	}
	return sent, nil
}
