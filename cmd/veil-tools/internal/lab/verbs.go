package lab

import (
	"context"
	"encoding/json"
	"os"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// command runs one verb until it is done or ctx ends; what it returns is printed as one line of
// JSON.
type command func(ctx context.Context, args []string) (any, error)

// Verbs returns the package's verbs, by name.
func Verbs() verb.Verbs {
	return verb.Verbs{
		"cni-call":      printing(cni, "Call CNI plugins as a container runtime does"),
		"echo-flow":     printing(flow, "Carry TCP and UDP flows to echo servers; report losses"),
		"echo-meet":     printing(meet, "Exchange messages with several echo servers at once"),
		"echo-send":     printing(send, "Send messages to an echo server and check the answers"),
		"echo-serve":    printing(echo, "Serve echoes over TCP and UDP"),
		"echo-try":      printing(try, "Try to reach echo servers repeatedly; count the answers"),
		"ethernet-send": printing(raw, "Send one Ethernet frame from standard input"),
		"https-get":     printing(ask, "Fetch a URL with the token of the pod's account"),
		"link-watch":    printing(watch, "Read the uplinks of a node and report plaintext"),
		"name-count":    printing(census, "Query servers of name-serve; count the answers of each"),
		"name-keep":     printing(keep, "Keep a connection and report which server answers it"),
		"name-serve":    printing(name, "Serve a name over TCP and UDP"),
		"node-hold":     printing(holder, "Hold the namespaces of a lab's node; the lab starts it"),
		"pause":         printing(pause, "Wait for a signal"),
		"stdin-run":     printing(obey, "Run lines of standard input: echo-send and tcp-knock"),
		"tcp-hold":      printing(hold, "Keep one TCP connection busy and report its longest gap"),
		"tcp-knock":     printing(knock, "Send a line to a TCP server and wait for any answer"),
		"tls-hold":      printing(api, "Hold TLS connections to API servers; report when they end"),
		"udp-count":     printing(sink, "Count the datagrams of udp-send"),
		"udp-send":      printing(source, "Send numbered datagrams at a steady rate"),
		"webhook-serve": printing(webhook, "Serve admission reviews and an aggregated API"),
	}
}

// printing returns a verb that prints the result of c.
func printing(c command, short string) verb.Verb {
	return verb.Verb{Short: short, Run: func(ctx context.Context, args []string) error {
		out, err := c(ctx, args)
		if out != nil {
			_ = json.NewEncoder(os.Stdout).Encode(out)
		}
		return err
	}}
}
