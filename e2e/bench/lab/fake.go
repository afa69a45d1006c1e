package lab

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeveil/kubeveil/e2e/lab"
	"github.com/kubeveil/kubeveil/e2e/lab/apiobject"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/veilnode"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

// Fake nodes exist only in the API. No host has their addresses.

func fakeName(i int) string { return fmt.Sprintf("fake-%04d", i) }

// fakeAddr returns the address of fake node i, in 198.18.4.0/22.
func fakeAddr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 18, byte(4 + i/250), byte(1 + i%250)})
}

// fakePrefix returns the pod prefix of fake node i, a /28 in 198.19.64.0/18.
func fakePrefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 19, byte(64 + i/16),
		byte(i % 16 * 16)}), 28)
}

// fakePrefixes returns the pod prefixes of fake node i, in the IP families of the lab.
func (s *scaled) fakePrefixes(i int) []netip.Prefix {
	prefixes := []netip.Prefix{fakePrefix(i)}
	if s.lab.Family() == lab.Dual {
		a := s.lab.Family().ClusterRanges()[1].Addr().As16()
		a[6], a[7] = byte(1+i/256), byte(i)
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom16(a), 64))
	}
	return prefixes
}

func (s *scaled) fakeClaim(i int, port uint16) cluster.Claim {
	return cluster.Claim{
		Keys:        []cluster.Key{{Public: wgkey.Public(sha256.Sum256([]byte(fakeName(i))))}},
		Endpoints:   []netip.AddrPort{netip.AddrPortFrom(fakeAddr(i), port)},
		PodPrefixes: s.fakePrefixes(i), MTU: 1500,
	}
}

// register announces all fake nodes, several at a time.
func (s *scaled) register(ctx context.Context) error {
	return byWorkers(ctx, s.nodes, func(ctx context.Context, i int) error {
		claim := s.fakeClaim(i, abi.TunnelPort)
		err := s.lab.Announce(ctx, cluster.Node{Name: fakeName(i), PodPrefixes: claim.PodPrefixes,
			Addresses: []netip.Addr{fakeAddr(i)}, Claim: &claim})
		if err != nil {
			return fmt.Errorf("register %s: %w", fakeName(i), err)
		}
		return nil
	})
}

// moveEndpoint changes the port of the endpoint that fake node i claims.
func (s *scaled) moveEndpoint(ctx context.Context, i int, port uint16) error {
	text, err := veilnode.Encode(s.fakeClaim(i, port))
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":%s}`, text)
	_, err = s.lab.Control.Dynamic.Resource(apiobject.VeilNodes).Patch(ctx, fakeName(i), types.MergePatchType,
		patch, metav1.PatchOptions{})
	return err
}
