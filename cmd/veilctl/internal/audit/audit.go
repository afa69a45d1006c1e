package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/connectivity"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// walkLimit bounds the duration of connectivity.
const walkLimit = 10 * time.Minute

// Command returns the verb that writes the audit file.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "report", Short: "Write a page that shows an auditor what is encrypted, and what is not",
		Long: `It writes report.html, a self-contained page, and result.json, and prints the SHA-256
of both. They contain the findings of check, the status of all nodes, connectivity, leakcheck of all
nodes for the time --for, flows by class, dropped packets by reason, versions and image digests, and
the exceptions in force with their text. They also list what was not examined, and why.

For leakcheck, it starts a pod of veild's image on each node, on the host's network with NET_RAW, in
a namespace that it removes at the end. For connectivity, it needs the image kubeveil-tools (see
veilctl connectivity). Without --image, it leaves connectivity out.

The files name nodes, pods and addresses of all tenants. They contain no secrets. Ctrl-C ends the
run, and the files then show that it was interrupted. The exit status is 1 if a verdict is bad.`,
		Example: `veilctl report --for 10m --out audit-2026-11
veilctl report --for 1h --out audit --image registry.example/kubeveil-tools:v0.1.0
jq -r '.notLookedAt[] | .what + ": " + .why' audit/result.json`,
	}
	fs := cmd.Flags()
	var access remote.Access
	access.Register(fs)
	long := fs.Duration("for", 10*time.Minute, "how long to read the nodes' uplinks")
	out := fs.String("out", "", "`folder` to write; it must be empty, or not exist")
	image := fs.String("image", "", "kubeveil-tools `image`, for connectivity (default: none)")
	return verb.New(cmd, func(c verb.Call) error {
		switch {
		case *out == "":
			return fmt.Errorf("name a folder with --out: %w", verb.ErrUsage)
		case *long < time.Second || *long > time.Hour:
			return fmt.Errorf("--for %v: write a time between 1s and 1h: %w", *long, verb.ErrUsage)
		}
		if err := result.CheckFolder(*out); err != nil {
			return err
		}
		k, err := access.Open()
		if err != nil {
			return err
		}
		if _, err := k.Client.Discovery().ServerVersion(); err != nil {
			return fmt.Errorf("connect to the API server %s: %w", k.Server, err)
		}
		return write(c, *out, &collector{cluster: k, access: access, image: *image, long: *long,
			began: time.Now(), progress: c.Progress})
	})
}

// write gathers the report, writes it into the folder dir, and prints the verdict.
func write(c verb.Call, dir string, from *collector) error {
	r := from.run(c.Ctx)
	r.Finish(from.secrets())
	sums, err := result.Write(dir, r)
	if err != nil {
		return err
	}

	for _, s := range r.Sections {
		fmt.Fprintf(c.Out, "%-16s%s\n", s.Label(), s.Title)
	}
	for _, gap := range r.Unseen {
		fmt.Fprintf(c.Progress, "not looked at: %s: %s\n", gap.What,
			strings.ReplaceAll(gap.Why, "\n", "; "))
	}
	fmt.Fprintf(c.Out, "\n%s\n", r.Label())
	for _, name := range []string{result.PageFile, result.JSONFile} {
		fmt.Fprintf(c.Out, "%s  %s/%s\n", sums[name], strings.TrimRight(dir, "/"), name)
	}
	if r.Verdict == result.Bad || r.Interrupted {
		return verb.ErrWrong
	}
	return nil
}

// connectivity sends every kind of flow and returns the section about them. Without an image of the
// tools it sends none, and the section contains the reason.
func (c *collector) connectivity(ctx context.Context) *result.Section {
	s := newWalk()
	switch {
	case c.image == "":
		s.Lacks("all flows", "no image was given: name the kubeveil-tools image with --image")
		return s
	case ctx.Err() != nil:
		s.Lacks("all flows", interrupted)
		return s
	}
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, walkLimit)
	defer cancel()
	k, err := remote.Connect(ctx, c.access, remote.ConnectConfig{Image: c.image})
	if err != nil {
		s.Lacks("all flows", err.Error())
		return s
	}
	r, err := connectivity.Walk(ctx, k, connectivity.WalkConfig{Step: func(what string) {
		c.say("%s", what)
	}})
	if whole.Err() != nil {
		err = fmt.Errorf("%s: %w", interrupted, err)
	}
	return judgeWalk(r, err)
}
