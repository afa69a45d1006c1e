package framework

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a command in the pod until it ends and returns its standard output, also with an error,
// which holds what it wrote to standard error. When ctx ends Exec returns; the command may go on
// until the pod ends. errors.As finds k8s.io/client-go/util/exec.CodeExitError in the error of a
// command that ended with another status than 0.
func (p *Pod) Exec(ctx context.Context, command ...string) ([]byte, error) {
	var out bytes.Buffer
	err := p.ExecStream(ctx, nil, &out, command...)
	return out.Bytes(), err
}

// ExecStream is Exec with what the command reads and where its output goes as it comes; stdin may
// be nil.
func (p *Pod) ExecStream(ctx context.Context, stdin io.Reader, stdout io.Writer,
	command ...string) error {
	c := p.Namespace.Cluster
	var stderr bytes.Buffer
	url := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace.Name).Name(
		p.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command,
			Stdin: stdin != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()

	// As kubectl does: websockets, and SPDY where a proxy or an older API server has none.
	socket, err := remotecommand.NewWebSocketExecutor(c.Config, "GET", url.String())
	if err != nil {
		return fmt.Errorf("exec in pod %s: %w", p.Name, err)
	}

	spdy, err := remotecommand.NewSPDYExecutor(c.Config, "POST", url)
	if err != nil {
		return fmt.Errorf("exec in pod %s: %w", p.Name, err)
	}

	either, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return fmt.Errorf("exec in pod %s: %w", p.Name, err)
	}

	err = either.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout,
		Stderr: &stderr})
	if err != nil {
		return fmt.Errorf("pod %s: %s: %w: %s", p.Name, strings.Join(command, " "), err,
			strings.TrimSpace(stderr.String()))
	}

	return nil
}

// canaryEnv names the variable with the string that fills labtool's payloads.
const canaryEnv = "LAB_CANARY"

// Message is what Send sends.
type Message struct {
	// Proto is "tcp" or "udp".
	Proto string
	To    netip.AddrPort
	// Count is the number of messages, 3 if 0, and Size the bytes of each, 400 if 0.
	Count, Size int
	// Timeout is for the whole, 10 s if 0.
	Timeout time.Duration
	// Canary fills the payloads; "" is the cluster's.
	Canary string
}

// Sent is what labtool says of the messages it sent.
type Sent struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	Bytes    int64   `json:"bytes"`
	Millis   float64 `json:"millis"`
	// Local is the sender's address and port, before any translation.
	Local string `json:"local"`
}

// Send sends messages from a pod of the tools image to an echo server, and fails unless every one
// came back unchanged.
func (p *Pod) Send(ctx context.Context, m Message) (Sent, error) {
	if m.Count == 0 {
		m.Count = 3
	}
	if m.Size == 0 {
		m.Size = 400
	}
	if m.Timeout == 0 {
		m.Timeout = 10 * time.Second
	}
	command := []string{"labtool", "send", "-proto", m.Proto, "-to", m.To.String(), "-count",
		fmt.Sprint(m.Count), "-size", fmt.Sprint(m.Size), "-timeout", m.Timeout.String()}
	if m.Canary != "" {
		command = append(command, "-canary", m.Canary)
	}
	var sent Sent
	out, err := p.Exec(ctx, command...)
	if err != nil {
		return sent, err
	}
	if err := json.Unmarshal(out, &sent); err != nil {
		return sent, fmt.Errorf("what labtool send says: %w", err)
	}
	return sent, nil
}
