package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/e2e/lab/labhost"
	"github.com/kubeveil/kubeveil/internal/toolresult"
)

// Ports of the lab's servers.
const (
	EchoPort = 7000
	SinkPort = 7001
)

// Place is where a program can run: a Host, a Node or a Pod.
type Place interface {
	Command(ctx context.Context, name string, args ...string) *exec.Cmd
	Start(ctx context.Context, name string, args ...string) (*labhost.Process, error)
	// Kit returns the paths and canaries that tools in the place need.
	Kit() Kit
	// String returns the name of the place.
	String() string
}

// CanaryEnv is the environment variable with the canary of veil-tools.
const CanaryEnv = "LAB_CANARY"

// Kit holds the paths and canaries that the tools of a lab need.
type Kit struct {
	// Tools is the path of veil-tools.
	Tools string
	// Canary and EgressCanary are the lab's fields of the same names.
	Canary, EgressCanary string
	// Authority is the path of the certificate authority's certificate on nodes.
	Authority string
}

// Echo starts an echo server for TCP and UDP at EchoPort and waits until it listens.
func Echo(ctx context.Context, at Place) (*labhost.Process, error) {
	return startTool(ctx, at, "listening", "echo-serve", "--listen", fmt.Sprintf(":%d", EchoPort))
}

// Exchange configures Send.
type Exchange struct {
	// Proto is "tcp" or "udp"; empty means TCP.
	Proto string
	// To is the address of a host with an Echo server, and Port its port. 0 means EchoPort.
	To   netip.Addr
	Port int
	// Count is the number of messages; 0 means 10. Size is the bytes per message; 0 means 200.
	Count, Size int
	// Timeout bounds the complete exchange; 0 means 5 s, and more on a busy machine (labhost.Slow).
	Timeout time.Duration
	// Egress makes the payload carry the lab's EgressCanary instead of Canary.
	Egress bool
}

// Results of the programs: of Send, TakeCensus, Keep, KeepAPI, Hold, Sink, Try and Carry.
type (
	Sent    = toolresult.Sent
	Census  = toolresult.Census
	Kept    = toolresult.Kept
	KeptAPI = toolresult.KeptAPI
	Held    = toolresult.Held
	Drained = toolresult.Drained
	Tried   = toolresult.Tried
	Carried = toolresult.Flow
)

// Send sends messages to an echo server. It returns an error unless every message came back
// unchanged.
func Send(ctx context.Context, from Place, x Exchange) (Sent, error) {
	if x.Proto == "" {
		x.Proto = "tcp"
	}
	args := []string{"echo-send", "--proto", x.Proto,
		"--to", target(x.To, orElse(x.Port, EchoPort)), "--count", fmt.Sprint(orElse(x.Count, 10)),
		"--size", fmt.Sprint(orElse(x.Size, 200)),
		"--timeout", orElse(x.Timeout, labhost.Slow(5*time.Second)).String()}
	cmd := from.Command(ctx, from.Kit().Tools, args...)
	if x.Egress {
		cmd.Env = append(cmd.Env, CanaryEnv+"="+from.Kit().EgressCanary)
	}
	out, err := labhost.Output(cmd)
	var s Sent
	if len(out) > 0 {
		if e := json.Unmarshal(out, &s); e != nil {
			return s, fmt.Errorf("answer of send: %w", e)
		}
	}
	return s, err
}

// Hold opens a TCP connection to an echo server and sends numbered records on it until it is ended.
// It returns when the connection is open. End it with Process.Result into a Held, which returns an
// error if the connection broke.
func Hold(ctx context.Context, from Place, to netip.Addr) (*labhost.Process, error) {
	return startTool(ctx, from, "connected", "tcp-hold", "--to", target(to, EchoPort))
}

// Sink starts a receiver of one-way UDP datagrams at SinkPort. End it with Process.Result into a
// Drained.
func Sink(ctx context.Context, at Place) (*labhost.Process, error) {
	return startTool(ctx, at, "listening", "udp-count", "--listen", fmt.Sprintf(":%d", SinkPort))
}

// Source starts to send UDP datagrams to a Sink, one per interval; 0 means 5 ms.
func Source(ctx context.Context, from Place, to netip.Addr,
	interval time.Duration) (*labhost.Process, error) {
	return startTool(ctx, from, "sending", "udp-send", "--to", target(to, SinkPort), "--interval",
		orElse(interval, 5*time.Millisecond).String())
}

// Try starts a program that tries to reach the echo servers at EchoPort again and again, over TCP
// and UDP. Each try has a new socket. End it with Process.Result into a []Tried.
func Try(ctx context.Context, from Place, to ...netip.Addr) (*labhost.Process, error) {
	var targets []string
	for _, addr := range to {
		targets = append(targets, target(addr, EchoPort))
	}
	return startTool(ctx, from, "tried", "echo-try", "--to", strings.Join(targets, ","))
}

// Carry starts a UDP flow and a TCP connection to an Echo server, and returns when both were
// answered. Both keep their source ports, even if the server does not answer. End it with
// Process.Result into a []Carried.
func Carry(ctx context.Context, from Place, to netip.Addr) (*labhost.Process, error) {
	return startTool(ctx, from, `"answered":1`, "echo-flow", "--to", target(to, EchoPort),
		"--report", "100ms")
}

func startTool(ctx context.Context, at Place, ready string, args ...string) (*labhost.Process,
	error) {
	p, err := at.Start(ctx, at.Kit().Tools, args...)
	if err != nil {
		return nil, err
	}
	p.Name = args[0]
	return p, p.WaitLine(ctx, ready, 10*time.Second)
}

func target(addr netip.Addr, port int) string {
	return netip.AddrPortFrom(addr, uint16(port)).String()
}

func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}
