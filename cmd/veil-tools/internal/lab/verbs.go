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

// Verbs are the package's verbs, by name.
var Verbs = map[string]verb.Verb{
	"api":     printing(api, "hold TLS connections to API servers and report when they end"),
	"ask":     printing(ask, "fetch a URL with the token of the pod's account"),
	"census":  printing(census, "ask name servers of a service and count the answers of each"),
	"cni":     printing(cni, "call CNI plugins as a container runtime does"),
	"echo":    printing(echo, "serve echoes over TCP and UDP"),
	"flow":    printing(flow, "carry flows and report which records were lost"),
	"hold":    printing(hold, "keep one TCP connection busy and report its longest gap"),
	"holder":  printing(holder, "hold the namespaces of a lab's node; the lab starts it"),
	"keep":    printing(keep, "keep connections and report which server answers each"),
	"knock":   printing(knock, "send a line to a TCP server and wait for any answer"),
	"meet":    printing(meet, "exchange messages with several echo servers at once"),
	"name":    printing(name, "serve a name over TCP and UDP"),
	"obey":    printing(obey, "run send and knock as standard input says"),
	"pause":   printing(pause, "wait for a signal"),
	"raw":     printing(raw, "send one Ethernet frame from standard input"),
	"send":    printing(send, "send messages to an echo server and check the answers"),
	"sink":    printing(sink, "count the datagrams of a source"),
	"source":  printing(source, "send numbered datagrams at a steady rate"),
	"try":     printing(try, "try to reach echo servers again and again and count the answers"),
	"watch":   printing(watch, "read the uplinks of a node and report plaintext"),
	"webhook": printing(webhook, "serve admission reviews and an aggregated API"),
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
