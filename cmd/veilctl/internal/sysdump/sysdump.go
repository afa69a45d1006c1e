package sysdump

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/check"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/cluster"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/preflight"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/version"
)

const (
	// dumped bounds the nodes that are read concurrently. dumpLimit bounds the time of one command
	// in a pod, or of reading one log.
	dumped    = 4
	dumpLimit = 30 * time.Second
)

// leftOut lists what sysdump never reads.
var leftOut = []string{
	"Secrets: none is read",
	"keys of encrypted volumes, wrapped ones too, and the names of claims and snapshots that " +
		"have volumes",
	"private keys: veild shows its own to no one",
	"objects and pods of namespaces other than kube-system, except the number of pods per node",
	"logs of others than Kubeveil: kubelet, container runtime, kernel, API server",
	"packets",
}

// Command returns the verb that writes a bug report.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sysdump", Short: "Gather all that a bug report needs, in one file, without secrets",
		Long: `It gathers versions, the findings of check, the status of all nodes, Kubeveil's
objects, encrypted volumes, nodes, events of kube-system, the logs of Kubeveil's pods, also of
previous containers, and the output of veilctl in each veild's pod: peers, MTU, guard, links, rules,
routes, nftables. It never reads Secrets. It removes and counts keys, tokens, passwords and similar
secrets in all files. manifest.json in the archive lists the files, what could not be read and why,
and what is never read.

With --local, it needs no API server. It gathers the output of veilctl on this node, veild's
configuration, and the logs of Kubeveil's containers. Run it as root on the node itself.

The file contains names and addresses of nodes. Check it before you give it to others.`,
		Example: `veilctl sysdump
veilctl sysdump --kubeconfig /etc/kubernetes/admin.conf -o /tmp/bug-1234.tar.gz
veilctl sysdump --local`,
	}
	flags := cmd.Flags()
	var access remote.Access
	access.Register(cmd.Flags())
	file := flags.StringP("output", "o", "",
		"`file` to write (default: kubeveil-sysdump-TIME.tar.gz here)")
	limit := flags.Duration("for", 5*time.Minute,
		"maximum time; parts that take longer are left out")
	local := flags.Bool("local", false, "gather data of this node, without the API server")
	cmd.MarkFlagsMutuallyExclusive("local", "kubeconfig")
	cmd.MarkFlagsMutuallyExclusive("local", "context")
	return verb.New(cmd, func(c verb.Call) error {
		root := "kubeveil-sysdump-" + time.Now().UTC().Format("20060102T150405Z")
		if *file == "" {
			*file = root + ".tar.gz"
		}
		ctx, cancel := context.WithTimeout(c.Ctx, *limit)
		defer cancel()
		c.Ctx = ctx
		if *local {
			return writeLocalDump(c, thisNode(), *file, root)
		}

		k, err := access.Open()
		if err != nil {
			return fmt.Errorf("%w; on a node, --local needs no API server", err)
		}
		return writeDump(c, k, *file, root)
	})
}

// writeDump writes the dump of a cluster.
func writeDump(c verb.Call, k *remote.Cluster, file, root string) error {
	return writeArchive(c, file, func(f *os.File) (*archive, error) {
		d, err := newDump(c, k, f, root)
		if err != nil {
			return nil, err
		}
		d.run(c.Ctx)
		return d.archive, nil
	})
}

// writeArchive writes the complete file or no file. gather writes an archive into f and returns it
// without closing it.
func writeArchive(c verb.Call, file string, gather func(f *os.File) (*archive, error)) (err error) {
	tmp := file + ".part"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(tmp))
		}
	}()

	a, err := gather(f)
	if err != nil {
		return err
	}
	m, err := a.close()
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}

	if err := os.Rename(tmp, file); err != nil {
		return err
	}

	redacted := 0
	for _, e := range m.Files {
		redacted += e.Redacted
	}

	fmt.Fprintf(c.Out, "%s: %d files, %d KiB; %d secrets taken out; %d items could not be read\n",
		file, len(m.Files), (info.Size()+1023)/1024, redacted, len(m.Missing))
	for _, x := range m.Missing {
		fmt.Fprintf(c.Progress, "  without %s: %s\n", x.Path, x.Why)
	}

	return nil
}

// dump is the state of one sysdump of a cluster.
type dump struct {
	*archive
	c       verb.Call
	cluster *remote.Cluster
	seen    []cluster.NodeSeen
}

// newDump begins a dump. It reads all nodes, because the redactor must know their public keys
// before the first file is written.
func newDump(c verb.Call, k *remote.Cluster, f *os.File, root string) (*dump, error) {
	d := &dump{c: c, cluster: k}
	if _, err := k.Client.Discovery().ServerVersion(); err != nil {
		return nil, fmt.Errorf("ask %s: %w", k.Server, err)
	}

	d.say("asking the veild of every node")
	seen, lookErr := cluster.Look(c.Ctx, k)
	d.seen = seen

	var public []string
	for _, n := range cluster.Assess(seen).Nodes {
		public = append(public, n.PublicKey)
		if n.Status == nil {
			continue
		}
		for _, dev := range n.Status.Devices {
			public = append(public, dev.PublicKey.String())
		}
		for _, p := range n.Status.Peers {
			public = append(public, p.PublicKey.String())
		}
	}

	d.archive = newArchive(f, root, redact.New(public, redact.OfClient(k.Config)), manifest{
		Made: time.Now().UTC().Truncate(time.Second), Version: version.String(),
		Server: k.Server, LeftOut: leftOut,
	})
	if lookErr != nil {
		d.lacks("status.json", lookErr)
	}

	return d, nil
}

func (d *dump) say(format string, args ...any) {
	fmt.Fprintf(d.c.Progress, format+" …\n", args...)
}

// run adds all files. A part that cannot be read is recorded and does not end the dump.
func (d *dump) run(ctx context.Context) {
	d.summaries(ctx)
	d.say("reading objects")
	d.objects(ctx)
	d.volumes(ctx)
	d.say("reading logs")
	d.logs(ctx)
	d.nodes(ctx)
}

func (d *dump) summaries(ctx context.Context) {
	d.text("README.txt", "veilctl", []byte("What `veilctl sysdump` gathered for a bug report "+
		"about Kubeveil. Begin with status.txt and check.txt; manifest.json lists\n"+
		"all files, what could not be read, and what was left out. REDACTED stands where a "+
		"secret was.\n"))
	report := cluster.Assess(d.seen)
	var b bytes.Buffer
	if err := report.Print(&b); err == nil {
		d.text("status.txt", "veilctl status", b.Bytes())
	}
	d.data("status.json", "veilctl status -o json", report)
	facts := check.Gather(ctx, d.cluster, "", nil)
	findings := preflight.Judge(facts)
	b.Reset()
	if err := check.PrintFindings(&b, findings); err == nil {
		d.text("check.txt", "veilctl check", b.Bytes())
	}
	d.data("versions.json", "veilctl, the API server, DaemonSets", map[string]any{
		"veilctl": version.String(), "apiServer": facts.Server.Version, "daemons": facts.Daemons,
	})
}

// nodes runs veilctl in the pod of each veild.
func (d *dump) nodes(ctx context.Context) {
	var g errgroup.Group
	g.SetLimit(dumped)
	for i, n := range d.seen {
		if n.Pod == "" {
			d.lacks("nodes/"+n.Name, errors.New("no pod of veild on this node"))
			continue
		}
		g.Go(func() error {
			d.say("node %s (%d of %d)", n.Name, i+1, len(d.seen))
			if n.PodWhy != "" {
				d.lacks("nodes/"+n.Name, errors.New(n.PodWhy))
				return nil
			}
			for _, what := range []string{"version", "status", "peers", "mtu", "guard", "host"} {
				if !d.inPod(ctx, n, what) {
					return nil // the pod did not answer in time, so other verbs would fail too
				}
			}
			return nil
		})
	}
	_ = g.Wait() // no node returns an error
}

// inPod adds the output of a verb of veilctl in the pod of a node's veild, and reports whether the
// pod answered in time.
func (d *dump) inPod(ctx context.Context, n cluster.NodeSeen, what string) bool {
	ctx, cancel := context.WithTimeout(ctx, dumpLimit)
	defer cancel()
	name := "nodes/" + n.Name + "/" + what + ".txt"
	out, err := d.cluster.ExecVeilctl(ctx, n.Pod, what)
	// If the node is not well, veilctl exits with 1 after it printed the status.
	if len(out) > 0 {
		d.text(name, "veilctl "+what+" in "+n.Pod, out)
	}
	if err != nil && len(out) == 0 {
		d.lacks(name, err)
	}
	return ctx.Err() == nil
}
