package lab

import (
	"context"
	"errors"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/load"
)

// plainCNI is a configuration without portmap and bandwidth in the CNI chain, as in the reference's
// chain.
var plainCNI = map[string]any{"cni": map[string]any{"confDir": "/etc/cni/net.d", "portmap": false,
	"bandwidth": false}}

// capped compares Kubeveil with the network in clear over a link of limited rate, so that CPU is
// not the limit.
func (r *run) capped(ctx context.Context) (err error) {
	const mtu = 1500
	var pairs [2]*pair
	for i, network := range []lab.Network{lab.Veil, lab.Clear} {
		l, err := lab.New(ctx, lab.Options{Family: lab.IPv4, Network: network, UnderlayMTU: mtu,
			Offloads: true})
		if err != nil {
			return err
		}
		defer l.Close()
		p, err := r.newPair(ctx, l, false)
		defer p.close()
		if err != nil {
			return err
		}
		if err := r.endOracle(l, network == lab.Clear); err != nil {
			return err
		}
		pairs[i] = p
	}

	if r.Result.Leaks.ControlPlaintext == 0 {
		return errors.New("the oracle saw no plaintext on the network in clear, so it is blind")
	}
	podMTU, err := pairs[0].podMTU(ctx)
	if err != nil {
		return err
	}

	tcp := func(p *pair) bench.Measure {
		return p.at("1gbit", func(ctx context.Context) (bench.Sample, error) {
			return p.flow(r.tcp+1e9).TCP(ctx, 1)
		})
	}
	hint := 185.0
	search := load.Search{Floor: 10, Ceiling: 250, Loss: maxLoss, Step: 1.01}
	err = r.Both(ctx, []bench.Comparison{
		{Name: caseTCPCapped, MTU: mtu, Unit: bench.Mbps, Ours: tcp(pairs[0]), Base: tcp(pairs[1]),
			BaseName: baseClear},
		{Name: caseUDPCapped, MTU: mtu, Unit: bench.Mbps, BaseName: baseClear,
			Ours: pairs[0].at("200mbit", r.udp(pairs[0], podMTU, search, &hint)),
			Base: pairs[1].at("200mbit", r.udp(pairs[1], mtu, search, &hint))},
	})
	if err != nil {
		return err
	}

	r.Result.Gates = append(r.Result.Gates,
		bench.AtLeast(labels[caseTCPCapped]+", against "+baseClear+": loses ≤ 6 %",
			r.Result.Find(caseTCPCapped, mtu), 0.94),
		bench.AtLeast(labels[caseUDPCapped]+", against "+baseClear+": loses ≤ 8 %",
			r.Result.Find(caseUDPCapped, mtu), 0.92))
	return nil
}

// at returns a measure that limits the links of the pair's lab to a rate and runs m.
func (p *pair) at(rate string, m bench.Measure) bench.Measure {
	return func(ctx context.Context) (bench.Sample, error) {
		if err := p.lab.Cap(ctx, rate); err != nil {
			return bench.Sample{}, err
		}
		return m(ctx)
	}
}
