package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
)

// NamePort is the first port of Named.
const NamePort = 7010

// Named starts a server that answers requests over TCP and UDP with its name, and waits until it
// listens. It listens on count ports from NamePort on. With several ports, the answer is name:port.
func Named(ctx context.Context, at Place, name string, count int) (*labhost.Process, error) {
	return startTool(ctx, at, "listening", "name-serve", "--name", name,
		"--port", fmt.Sprint(NamePort), "--count", fmt.Sprint(count))
}

// Question is a request of TakeCensus and Keep to Named servers.
type Question struct {
	// Proto is "tcp" or "udp"; empty means TCP.
	Proto string
	To    netip.AddrPort
	// Count is the number of requests of TakeCensus; 0 means 30. Each request has a new socket.
	// Keep uses one socket and sends requests until it is ended.
	Count int
	// Timeout bounds each request; 0 means 1 s, and more on a busy machine (labhost.Slow). Pause is
	// the time between two requests.
	Timeout, Pause time.Duration
	// FromPort is the source port of the requests; 0 means any.
	FromPort int
	// Unconnected makes Keep use a UDP socket that is not connected.
	Unconnected bool
	// Egress sends the lab's EgressCanary instead of Canary, because requests from outside reach
	// the node in clear.
	Egress bool
}

// args returns the arguments that all tools for a Question have.
func (q Question) args(from Place) []string {
	canary := from.Kit().Canary
	if q.Egress {
		canary = from.Kit().EgressCanary
	}
	return []string{"--proto", orElse(q.Proto, "tcp"), "--to", q.To.String(), "--from-port",
		fmt.Sprint(q.FromPort), "--canary", canary}
}

// TakeCensus sends requests and counts the servers that answered. It ends after q.Count requests,
// or after three requests without an answer. Missing answers are not an error.
func TakeCensus(ctx context.Context, from Place, q Question) (Census, error) {
	args := append([]string{"name-count", "--count", fmt.Sprint(orElse(q.Count, 30)),
		"--timeout", orElse(q.Timeout, labhost.Slow(time.Second)).String(), "--pause", q.Pause.String()},
		q.args(from)...)
	out, err := labhost.Output(from.Command(ctx, from.Kit().Tools, args...))
	var c Census
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(out, &c); err != nil {
		return c, fmt.Errorf("answer of census: %w", err)
	}
	return c, nil
}

// Keep starts a program that sends requests over one socket until it is ended, and waits for the
// first answer. The program prints a line "now NAME" when another server answers. End it with
// Process.Result into a Kept, which returns an error if a TCP connection broke.
func Keep(ctx context.Context, from Place, q Question) (*labhost.Process, error) {
	args := append([]string{"name-keep"}, q.args(from)...)
	if q.Unconnected {
		args = append(args, "--unconnected")
	}
	return startTool(ctx, from, "now ", args...)
}

// KeepAPI starts a program that holds idle connections to the API servers by their service, and
// waits until these are established. The program also opens 20 new connections per second, each of
// which must be answered within 3 s, or more on a busy machine (labhost.Slow). It prints a line "closed N" when the N-th of the held connections has ended. End it with
// Process.Result into a KeptAPI.
func KeepAPI(ctx context.Context, from Place, to netip.AddrPort, hold int) (*labhost.Process,
	error) {
	return startTool(ctx, from, "open", "tls-hold", "--to", to.String(), "--ca",
		from.Kit().Authority, "--hold", fmt.Sprint(hold),
		"--timeout", labhost.Slow(3*time.Second).String())
}
