package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/site/path"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// linkFlags are the flags of link.
type linkFlags struct {
	ends         ends
	server, file string
	nodes        string
	duration     time.Duration
	timeout      time.Duration
	noPath       bool
}

// linked is the result of link. Its JSON is output for programs: fields are added, never renamed.
type linked struct {
	// Site is the name of the other cluster in the configuration of this one, and Cluster the name
	// of this cluster in the configuration of the other.
	Site    string `json:"site"`
	Cluster string `json:"cluster"`
	// Namespace is the namespace of the other cluster that this one reads, at Server.
	Namespace string `json:"namespace"`
	Server    string `json:"server"`
	// Paths are the results between two nodes, if they were checked.
	Paths []path.Result `json:"paths,omitempty"`
	// TokenEnds is when the new token ends.
	TokenEnds time.Time `json:"tokenEnds"`
	// WrittenTo is the Secret or the file that has the credentials.
	WrittenTo string `json:"writtenTo"`
	// Warnings are sentences about what does not prevent a link.
	Warnings []string `json:"warnings,omitempty"`
	// Next are the steps that remain.
	Next []string `json:"next"`
}

// minToken is the shortest lifetime that an API server accepts.
const minToken = 10 * time.Minute

func (f *linkFlags) run(c verb.Call) error {
	if f.duration < minToken {
		return fmt.Errorf("--token-duration %v: write at least %v: %w", f.duration, minToken,
			verb.ErrUsage)
	}
	if f.timeout <= 0 {
		return fmt.Errorf("--timeout %v: write a time above 0: %w", f.timeout, verb.ErrUsage)
	}
	ctx, cancel := context.WithTimeout(c.Ctx, f.timeout)
	defer cancel()
	r, err := f.link(ctx, c)
	if err != nil {
		if c.Ctx.Err() == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("it took longer than --timeout %v: %w", f.timeout, err)
		}
		return err
	}
	return c.Print(r, false, func() error { return r.show(c) })
}

// link checks both clusters, and then writes.
func (f *linkFlags) link(ctx context.Context, c verb.Call) (*linked, error) {
	step := func(format string, args ...any) {
		fmt.Fprintf(c.Progress, format+" …\n", args...)
	}
	if f.ends.there == (remote.Access{}) {
		return nil, fmt.Errorf("name a kubeconfig of the other cluster with --from: %w",
			verb.ErrUsage)
	}
	if err := f.fileIsNew(); err != nil {
		return nil, err
	}
	step("reading both clusters")
	here, there, err := f.ends.open(ctx)
	if err != nil {
		return nil, err
	}
	thereAs, hereAs, err := pair(here, there)
	if err == nil {
		err = errors.Join(here.installed(ctx), there.installed(ctx))
	}
	if err != nil {
		return nil, err
	}
	server, err := f.address(there)
	if err != nil {
		return nil, err
	}
	r := &linked{Site: thereAs.Name, Cluster: hereAs.Name, Server: server.Host,
		Warnings: closed(here, thereAs, there, hereAs)}

	if !f.noPath {
		p := path.Prober{Here: &here.End, There: &there.End, Step: step}
		if err := p.Choose(ctx, f.nodes); err != nil {
			return nil, err
		}
		r.Paths, err = p.Check(ctx)
		if left := p.Close(ctx); err != nil {
			return nil, errors.Join(err, left)
		} else if left != nil {
			r.Warnings = append(r.Warnings, left.Error())
		}
	}

	step("making the account in %s", otherCluster)
	a := account{side: there, reader: hereAs.Name}
	credentials, err := a.make(ctx, server, f.duration)
	if err != nil {
		return nil, err
	}
	r.Namespace, r.TokenEnds = a.namespace(), credentials.ends
	if warning, err := a.try(ctx, credentials); err != nil {
		return nil, err
	} else if warning != "" {
		r.Warnings = append(r.Warnings, warning)
	}
	if r.WrittenTo, err = f.write(ctx, here, thereAs.Name, credentials.text); err != nil {
		return nil, err
	}
	r.Next = f.next(r)
	return r, nil
}

// closed returns sentences about entries that keep the other cluster closed.
func closed(here *side, thereAs cluster.Site, there *side, hereAs cluster.Site) (out []string) {
	if !thereAs.Open() {
		out = append(out, fmt.Sprintf("%s keeps site %s closed: set reach: exports", here.What,
			thereAs.Name))
	}
	if !hereAs.Open() {
		out = append(out, fmt.Sprintf("%s keeps site %s closed: set reach: exports", there.What,
			hereAs.Name))
	}
	if len(thereAs.Imports) == 0 {
		out = append(out, fmt.Sprintf("%s imports no service of %s: name namespaces in imports",
			here.What, thereAs.Name))
	}
	return out
}

// address returns how nodes of this cluster reach the API server of the other.
func (f *linkFlags) address(there *side) (server, error) {
	s, err := serverOf(there.Cluster.Config)
	if err != nil {
		return s, fmt.Errorf("%s: %w", there.What, err)
	}
	if f.server != "" {
		s.Host = f.server
	}
	u, err := url.Parse(s.Host)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return s, fmt.Errorf("the address %s of %s is not https://HOST:PORT: name it with --server",
			s.Host, there.What)
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if f.server == "" && (u.Hostname() == "localhost" || err == nil && addr.IsLoopback()) {
		return s, fmt.Errorf("nodes of this cluster do not reach %s at the loopback address %s: "+
			"name another with --server", there.What, s.Host)
	}
	return s, nil
}

// next returns the steps that remain.
func (f *linkFlags) next(r *linked) (steps []string) {
	if f.file != "" {
		steps = append(steps, fmt.Sprintf("put it into the Secret of veil-site, under the key %s:\n"+
			"    kubectl -n kube-system create secret generic veil-site --from-file=%[1]s=%s "+
			"--dry-run=client -o yaml |\n"+
			"        kubectl apply --server-side --force-conflicts --field-manager=site-%[1]s -f -",
			r.Site, f.file))
	}
	return append(steps,
		"link the other direction, if it is not yet: veilctl site link with both kubeconfigs "+
			"exchanged",
		"for names in clusterset.local, write into the Corefile (CoreDNS 1.12.2 or newer):\n"+
			"    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {\n"+
			"        multicluster clusterset.local",
		"veilctl site status")
}

// show writes the result for people.
func (r *linked) show(c verb.Call) error {
	rows := [][]string{{"This cluster there", r.Cluster}, {"API server", r.Server},
		{"Namespace there", r.Namespace},
		{"Token ends", r.TokenEnds.UTC().Format(time.RFC3339)}, {"Written to", r.WrittenTo}}
	for _, p := range r.Paths {
		rows = append(rows, []string{"Path", p.String()})
	}
	if err := verb.Table(c.Out, "Site | "+r.Site, rows); err != nil {
		return err
	}
	for _, w := range r.Warnings {
		fmt.Fprintln(c.Out, "WARNING", w)
	}
	_, err := fmt.Fprintf(c.Out, "\nNext:\n* %s\n", strings.Join(r.Next, "\n* "))
	return err
}
