package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/remote"
	"github.com/kubeveil/kubeveil/pkg/preflight"
)

var installVerb = verb{
	name: "install", short: "with -check: is the cluster fit for Kubeveil, before anything " +
		"is changed", register: install,
	about: `It reads, and changes nothing: the API server's version and policies, your rights, the ranges and who overlaps whom, pod CIDRs, the way to
the API server, other network plugins, kernels, container runtimes, and what of Kubeveil's is there already. Each finding comes with what
to do. What only a node can see, ` + "`veild check`" + ` says there.

By default it judges the configuration in the cluster's ConfigMap kubeveil, and where there is none, the one that manifests/ has; with
-config, a file with the veild.yaml that you are going to install.

Installing itself is kubectl apply -k manifests/.`,
	examples: `veilctl install -check && kubectl apply -k manifests/
veilctl install -check -kubeconfig /etc/kubernetes/admin.conf
veilctl install -check -config my-veild.yaml -o json | jq '.findings[] | select(.level != "ok")'`,
}

func install(flags *flag.FlagSet) func(call) error {
	var access remote.Access
	access.Register(flags)
	check := flags.Bool("check", false,
		"check and change nothing; the only thing that install does")
	file := flags.String("config", "",
		"`file` with the veild.yaml to judge (default: the cluster's, or that of manifests/)")
	return func(c call) error {
		if !*check {
			return fmt.Errorf("install without -check: Kubeveil is installed by kubectl apply -k "+
				"manifests/; write veilctl install -check to check the cluster before: %w",
				errUsage)
		}

		var text []byte
		if *file != "" {
			var err error
			if text, err = os.ReadFile(*file); err != nil {
				return fmt.Errorf("-config: %w", err)
			}
		}

		cluster, err := access.Open()
		if err != nil {
			return err
		}

		facts := gather(c.ctx, cluster)
		if *file != "" {
			facts.Config, facts.ConfigFrom = string(text), *file
		}

		return c.report(preflight.Judge(facts))
	}
}

// report prints findings; an error among them is the command's.
func (c call) report(findings []preflight.Finding) (err error) {
	errors := preflight.Count(findings, preflight.Error)
	if c.json {
		err = printJSON(c.out, map[string]any{"fit": errors == 0, "findings": findings})
	} else {
		err = showFindings(c.out, findings)
	}
	if err == nil && errors > 0 {
		err = errWrong
	}
	return err
}

func showFindings(w io.Writer, findings []preflight.Finding) error {
	const indent = "                                "
	for _, f := range findings {
		level := string(f.Level)
		if f.Level == preflight.Error {
			level = "ERROR"
		}
		fmt.Fprintf(w, "%-9s%-23s%s\n", level, f.Check, strings.ReplaceAll(f.Found, "\n", " "))
		if f.Do != "" {
			fmt.Fprintf(w, "%sdo: %s\n", indent, f.Do)
		}
	}
	errors, warnings := preflight.Count(findings, preflight.Error),
		preflight.Count(findings, preflight.Warning)
	verdict := "the cluster is fit for Kubeveil"
	if errors > 0 {
		verdict = "the cluster is NOT fit for Kubeveil as it is"
	}
	_, err := fmt.Fprintf(w, "\n%s (errors: %d, warnings: %d); nothing was changed\n", verdict,
		errors, warnings)
	return err
}
