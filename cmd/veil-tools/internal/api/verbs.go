package api

import "github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"

// Verbs returns the package's verbs, keyed by name.
func Verbs() verb.Verbs {
	printing := verb.Printing
	return verb.Verbs{
		"https-get":     printing(ask, "Fetch a URL with the token of the pod's account"),
		"tls-hold":      printing(api, "Hold TLS connections to API servers; report when they end"),
		"webhook-serve": printing(webhook, "Serve admission reviews and an aggregated API"),
	}
}

// flagsOf returns the flags of the verb called name.
func flagsOf(name string) verb.Set { return verb.NewSet(name, Verbs()) }
