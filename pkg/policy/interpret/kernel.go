package interpret

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
	"github.com/kubeveil/kubeveil/pkg/policy/nftables/chains"
)

// ourTable names the table of policies.
var ourTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: abi.NFTPolicyTable}

// Kernel holds the table as it was read from the kernel. It reads a chain or a set when a packet
// first needs it, and then keeps it. A caller that changes the table must open a new Kernel. Close
// it at the end.
type Kernel struct {
	conn *nftables.Conn
	// chains are by name; nil means that no table is in force. rules holds the rules read so far.
	chains map[string]*nftables.Chain
	rules  map[string][]*nftables.Rule
	sets   map[string]*set
}

// Open reads which chains and sets the table of the calling thread's network namespace has.
// Its methods must run in that namespace too.
func Open() (*Kernel, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	k := &Kernel{conn: c, rules: map[string][]*nftables.Rule{}, sets: map[string]*set{}}
	if err := k.open(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *Kernel) open() error {
	const dormant = 1 // NFT_TABLE_F_DORMANT
	t, err := k.conn.ListTableOfFamily(ourTable.Name, ourTable.Family)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read nftables table %s: %w", ourTable.Name, err)
	}
	// The library reads the flags in the byte order of the host; the kernel sends them big-endian.
	if binary.BigEndian.Uint32(binaryutil.NativeEndian.PutUint32(t.Flags))&dormant != 0 {
		return nil
	}

	chains, err := k.conn.ListChainsOfTableFamily(ourTable.Family)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	k.chains = map[string]*nftables.Chain{}
	for _, ch := range chains {
		if ch.Table.Name == ourTable.Name {
			k.chains[ch.Name] = ch
		}
	}
	sets, err := k.conn.GetSets(ourTable)
	if err != nil {
		return fmt.Errorf("list sets of %s: %w", ourTable.Name, err)
	}
	for _, s := range sets {
		k.sets[s.Name] = &set{Set: s}
	}
	return nil
}

// Close closes the connection to the kernel.
func (k *Kernel) Close() error { return k.conn.CloseLasting() }

// Packet is the first packet of a flow. A packet to this node passes hook input, any other packet
// passes postrouting.
type Packet struct {
	policy.Flow
	// FromNode reports whether a process of this node sent it.
	FromNode bool
}

// Decision is what the table does with a packet.
type Decision struct {
	Verdict policy.Verdict
	// Rule is the chain and the text of the rule that decided. An empty Rule means that the packet
	// reached the end of the chain.
	Rule string
}

// Judge interprets the rules and the elements of sets as nf_tables does. An error names the part of
// the table that differs from what package nftables writes. Judge does not see conditions that the
// nftables library cannot read.
func (k *Kernel) Judge(p Packet) (Decision, error) {
	if k.chains == nil {
		return Decision{policy.Allow, "there is no table " + ourTable.Name}, nil
	}
	m := &machine{kernel: k, packet: p}
	m.network, m.transport = headers(p.Flow)
	for _, at := range chains.AtHooks(p.ToNode) {
		missing, err := k.checkChain(at)
		if err != nil {
			return Decision{}, err
		}
		if missing {
			m.decision.Rule = "there is no chain " + at.Name
			continue
		}
		if _, err := m.chain(at.Name); err != nil || m.decision.Verdict != policy.Allow {
			return m.decision, err
		}
	}
	return m.decision, nil
}

// checkChain compares the kernel's chain with the wanted chain at a hook. missing reports whether
// the kernel has no such chain. The error describes a difference.
func (k *Kernel) checkChain(at chains.AtHook) (missing bool, err error) {
	ch := k.chains[at.Name]
	switch {
	case ch == nil:
		return true, nil
	case ch.Hooknum == nil || ch.Priority == nil || ch.Type != nftables.ChainTypeFilter:
		return false, fmt.Errorf("chain %s is at no hook, or of type %s, want filter", at.Name, ch.Type)
	case *ch.Hooknum != at.Hook || *ch.Priority != at.Priority:
		return false, fmt.Errorf("chain %s is at hook %d with priority %d, want hook %d with %d",
			at.Name, *ch.Hooknum, *ch.Priority, at.Hook, at.Priority)
	case ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept:
		return false, fmt.Errorf("the policy of chain %s is not accept", at.Name)
	}
	return false, nil
}

// layout has the offsets of one family (RFC 791, RFC 8200; RFC 792 and RFC 4443 for errors).
type layout struct {
	nfproto      byte
	saddr, daddr int // in the network header
	quoted       int // of the quoted destination, in an ICMP error
}

func layoutOf(a netip.Addr) layout {
	if a.Is4() {
		return layout{unix.NFPROTO_IPV4, 12, 16, 8 + 16}
	}
	return layout{unix.NFPROTO_IPV6, 8, 24, 8 + 24}
}

// headers returns the network and the transport header of the first packet of a flow, with the
// fields that rules may load.
func headers(f policy.Flow) (network, transport []byte) {
	src, dst := f.Src.AsSlice(), f.Dst.AsSlice()
	network, transport = make([]byte, 40), make([]byte, 64)
	at := layoutOf(f.Src)
	copy(network[at.saddr:], src)
	copy(network[at.daddr:], dst)

	if f.Quotes.IsValid() {
		copy(transport[at.quoted:], f.Quotes.AsSlice())
		return network, transport
	}
	switch f.Proto {
	case policy.TCP, policy.UDP, policy.SCTP:
		binary.BigEndian.PutUint16(transport[2:], f.Port)
	}
	if f.Proto == policy.TCP {
		const flags, syn, ack = 13, 0x02, 0x10
		transport[flags] = syn
		if f.Midstream {
			transport[flags] = ack
		}
	}
	return network, transport
}

// rulesOf reads the rules of a chain.
func (k *Kernel) rulesOf(chain string) ([]*nftables.Rule, error) {
	if rules, has := k.rules[chain]; has {
		return rules, nil
	}
	ch := k.chains[chain]
	if ch == nil {
		return nil, fmt.Errorf("chain %s does not exist", chain)
	}
	rules, err := k.conn.GetRules(ourTable, ch)
	if err != nil {
		return nil, fmt.Errorf("list rules of %s: %w", chain, err)
	}
	k.rules[chain] = rules
	return rules, nil
}

// textOf returns the text of a rule that package nftables wrote. ok is false for a rule of another
// program.
func textOf(r *nftables.Rule) (text string, ok bool) {
	return userdata.GetString(r.UserData, userdata.TypeComment)
}

// counterOf returns the verdict whose drops the rule counts. The second result is false if the rule
// counts no drops.
func counterOf(exprs []expr.Any) (policy.Verdict, bool) {
	for _, e := range exprs {
		o, ok := e.(*expr.Objref)
		if !ok || !slices.Contains(policy.DropReasons, o.Name) {
			continue
		}
		for v := policy.DenyPending; v <= policy.DenyRelated; v++ {
			if v.String() == o.Name {
				return v, true
			}
		}
	}
	return 0, false
}
