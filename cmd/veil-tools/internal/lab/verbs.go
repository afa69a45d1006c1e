package lab

import "github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"

// Verbs returns the package's verbs, keyed by name.
func Verbs() verb.Verbs {
	printing := verb.Printing
	return verb.Verbs{
		"echo-flow":     printing(flow, "Carry TCP and UDP flows to echo servers; report losses"),
		"echo-meet":     printing(meet, "Exchange messages with several echo servers at once"),
		"echo-send":     printing(send, "Send messages to an echo server and check the answers"),
		"echo-serve":    printing(echo, "Serve echoes over TCP and UDP"),
		"echo-try":      printing(try, "Try to reach echo servers repeatedly; count the answers"),
		"ethernet-send": printing(raw, "Send one Ethernet frame from standard input"),
		"name-count":    printing(census, "Query servers of name-serve; count the answers of each"),
		"name-keep":     printing(keep, "Keep a connection and report which server answers it"),
		"name-serve":    printing(name, "Serve a name over TCP and UDP"),
		"stdin-run":     printing(obey, "Run lines of standard input: echo-send and tcp-knock"),
		"tcp-hold":      printing(hold, "Keep one TCP connection busy and report its longest gap"),
		"tcp-knock":     printing(knock, "Send a line to a TCP server and wait for any answer"),
		"udp-count":     printing(sink, "Count the datagrams of udp-send"),
		"udp-send":      printing(source, "Send numbered datagrams at a steady rate"),
	}
}

// flagsOf returns the flags of the verb called name.
func flagsOf(name string) verb.Set { return verb.NewSet(name, Verbs()) }
