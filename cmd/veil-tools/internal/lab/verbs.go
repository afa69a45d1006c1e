package lab

import (
	"context"
	"encoding/json"
	"os"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// command runs one verb until it is done or ctx ends; what it returns is printed as one line of JSON.
type command func(ctx context.Context, args []string) (any, error)

// Verbs are the package's verbs, by name.
var Verbs = map[string]verb.Verb{
	"api":     {Short: "hold TLS connections to API servers and report when they end", Run: printing(api)},
	"ask":     {Short: "fetch a URL with the token of the pod's account", Run: printing(ask)},
	"census":  {Short: "ask name servers of a service and count the answers of each", Run: printing(census)},
	"cni":     {Short: "call CNI plugins as a container runtime does", Run: printing(cni)},
	"echo":    {Short: "serve echoes over TCP and UDP", Run: printing(echo)},
	"flow":    {Short: "carry flows and report which records were lost", Run: printing(flow)},
	"hold":    {Short: "keep one TCP connection busy and report its longest gap", Run: printing(hold)},
	"holder":  {Short: "hold the namespaces of a lab's node; the lab starts it", Run: printing(holder)},
	"keep":    {Short: "keep connections and report which server answers each", Run: printing(keep)},
	"knock":   {Short: "send a line to a TCP server and wait for any answer", Run: printing(knock)},
	"meet":    {Short: "exchange messages with several echo servers at once", Run: printing(meet)},
	"name":    {Short: "serve a name over TCP and UDP", Run: printing(name)},
	"obey":    {Short: "run send and knock as standard input says", Run: printing(obey)},
	"pause":   {Short: "wait for a signal", Run: printing(pause)},
	"raw":     {Short: "send one Ethernet frame from standard input", Run: printing(raw)},
	"send":    {Short: "send messages to an echo server and check the answers", Run: printing(send)},
	"sink":    {Short: "count the datagrams of a source", Run: printing(sink)},
	"source":  {Short: "send numbered datagrams at a steady rate", Run: printing(source)},
	"watch":   {Short: "read the uplinks of a node and report plaintext", Run: printing(watch)},
	"webhook": {Short: "serve admission reviews and an aggregated API", Run: printing(webhook)},
}

// printing returns a verb's Run that prints the result of c.
func printing(c command) func(ctx context.Context, args []string) error {
	return func(ctx context.Context, args []string) error {
		out, err := c(ctx, args)
		if out != nil {
			_ = json.NewEncoder(os.Stdout).Encode(out)
		}
		return err
	}
}
