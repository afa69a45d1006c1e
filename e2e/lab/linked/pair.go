package linked

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/leak"
)

// Names of the clusters of a Pair.
const (
	NameA = "a"
	NameB = "b"
)

// Options configures a Pair. The zero value means that no site imports anything.
type Options struct {
	// Imports are the namespaces into which both clusters import.
	Imports []string
	// VeildConfig has more settings of the veilds of both clusters.
	VeildConfig map[string]any
	// ServerFlags are more flags of the API servers.
	ServerFlags []string
	// Dir is the folder of artefacts, or "" as in lab.Options.
	Dir string
	Log *slog.Logger
}

// Pair is two clusters on one network that are linked, with an API server, a node and a veil-site
// each.
type Pair struct{ A, B *Cluster }

// New makes a Pair. After an error, nothing but artefacts is left.
func New(ctx context.Context, o Options) (p *Pair, err error) {
	p = &Pair{A: &Cluster{Name: NameA}, B: &Cluster{Name: NameB}}
	defer func() {
		if err != nil {
			_, end := p.Close()
			err = errors.Join(fmt.Errorf("make linked clusters: %w", err), end)
		}
	}()
	partA, partB := lab.Dual.Parts()
	options := lab.Options{Log: o.Log, Dir: o.Dir, Nodes: 1,
		VeildConfig:    Settings(partA, partB, NameB, o.Imports...),
		APIServerFlags: func(int) []string { return o.ServerFlags }}
	maps.Copy(options.VeildConfig, o.VeildConfig)
	if p.A.Lab, err = lab.New(ctx, options); err != nil {
		return p, err
	}

	options.Beside, options.VeildConfig = p.A.Lab, Settings(partB, partA, NameA, o.Imports...)
	if o.Dir != "" {
		options.Dir = o.Dir + "-" + NameB
	}
	maps.Copy(options.VeildConfig, o.VeildConfig)
	if p.B.Lab, err = lab.New(ctx, options); err != nil {
		return p, err
	}
	node, err := p.B.AddNode(ctx)
	if err != nil {
		return p, err
	}
	if err := errors.Join(node.WaitReady(ctx), p.A.Control.InstallSites(ctx),
		p.B.Control.InstallSites(ctx)); err != nil {
		return p, err
	}
	return p, Link(ctx, [2]*Cluster{p.A, p.B})
}

// Close removes both clusters, and returns the result of the oracle that watched them.
func (p *Pair) Close() (leak.Result, error) {
	var errs []error
	if p.B.Lab != nil {
		errs = append(errs, p.B.Lab.Close())
	}
	if p.A.Lab == nil {
		return leak.Result{}, errors.Join(errs...)
	}
	result, err := p.A.Finish()
	return result, errors.Join(append(errs, err)...)
}
