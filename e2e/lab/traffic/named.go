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

// Named starts a server that answers with its name, over TCP and UDP, at count ports from NamePort
// on, and waits until it listens. With more than one port the answer is name:port.
func Named(ctx context.Context, at Place, name string, count int) (*labhost.Process, error) {
	return startTool(ctx, at, "listening", "name-serve", "--name", name,
		"--port", fmt.Sprint(NamePort), "--count", fmt.Sprint(count))
}

// Question is a request of TakeCensus and Keep to Named servers.
type Question struct {
	// Proto is "tcp" or "udp"; empty means TCP.
	Proto string
	To    netip.AddrPort
	// Count is the number of requests, 30 when 0; each has a socket of its own. Keep has one socket
	// and sends requests until it is ended.
	Count int
	// Timeout is for each, 1 s when 0; Pause is between two.
	Timeout, Pause time.Duration
	// FromPort is the source port of the requests; 0 means any.
	FromPort int
	// Unconnected is a UDP socket without a peer of its own, for Keep.
	Unconnected bool
	// Egress sends the lab's EgressCanary instead of Canary: what comes from outside is in clear as
	// far as the node.
	Egress bool
}

// args returns the arguments of the tool that its commands share.
func (q Question) args(from Place) []string {
	canary := from.Kit().Canary
	if q.Egress {
		canary = from.Kit().EgressCanary
	}
	return []string{"--proto", orElse(q.Proto, "tcp"), "--to", q.To.String(), "--from-port",
		fmt.Sprint(q.FromPort), "--canary", canary}
}

// Census counts the servers that answered.
type Census struct {
	// Names counts the answers by server, Sources by the address that the server saw.
	Names   map[string]int `json:"names"`
	Sources map[string]int `json:"sources"`
	// Failed are those without an answer, Refused those among them that were refused; Error is the
	// first.
	Failed  int    `json:"failed"`
	Refused int    `json:"refused"`
	Error   string `json:"error"`
	// SlowestMillis is the longest that one took, answered or not.
	SlowestMillis float64 `json:"slowestMillis"`
}

// TakeCensus sends the requests, until all are sent or three had no answer, and counts the servers
// that answered. It is not an error if none did.
func TakeCensus(ctx context.Context, from Place, q Question) (Census, error) {
	args := append([]string{"name-count", "--count", fmt.Sprint(orElse(q.Count, 30)),
		"--timeout", orElse(q.Timeout, time.Second).String(), "--pause", q.Pause.String()},
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

// Keep sends requests over one socket, again and again, and waits for the first answer. A line "now
// NAME" reports that another server answers. End it with Process.Result into a Kept, which fails
// when a TCP connection did not live.
func Keep(ctx context.Context, from Place, q Question) (*labhost.Process, error) {
	args := append([]string{"name-keep"}, q.args(from)...)
	if q.Unconnected {
		args = append(args, "--unconnected")
	}
	return startTool(ctx, from, "now ", args...)
}

// Kept is the result of Keep.
type Kept struct {
	Answered   uint64 `json:"answered"`
	Unanswered uint64 `json:"unanswered"`
	// Error is the error of the first request without an answer.
	Error string `json:"error"`
	// Aborted is how often a connected UDP socket was taken away from the program and made again.
	Aborted uint64 `json:"aborted"`
	// Names are the servers that answered, one after the other.
	Names []string `json:"names"`
	// MaxGapMillis is the longest time between two answers.
	MaxGapMillis float64 `json:"maxGapMillis"`
}

// KeepAPI holds idle connections to the API servers by their service. It makes new ones beside
// them, 20 per second, and waits until the former are established. A line "closed N" reports that
// the N-th of them has ended. End it with Process.Result into a KeptAPI.
func KeepAPI(ctx context.Context, from Place, to netip.AddrPort, hold int) (*labhost.Process,
	error) {
	return startTool(ctx, from, "open", "tls-hold", "--to", to.String(), "--ca",
		from.Kit().Authority, "--hold", fmt.Sprint(hold))
}

// KeptAPI is the result of KeepAPI. Times are milliseconds since 1970.
type KeptAPI struct {
	// Opened is how many connections were held, Closed when those ended that did.
	Opened int     `json:"opened"`
	Closed []int64 `json:"closed"`
	// Asked is the number of new connections beside them, Failed the times at which failing ones
	// began.
	Asked  int     `json:"asked"`
	Failed []int64 `json:"failed"`
}
