package nftables

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/policy"
)

// Kernel is the table as the kernel has it. It reads a chain or a set when a packet first needs it,
// and then keeps it. A caller that changes the table must open a new Kernel. Close it at the end.
type Kernel struct {
	conn *nftables.Conn
	wire *nfnl.Conn
	// chains are by name; nil means that no table is in force. rules holds the rules read so far.
	chains map[string]*nftables.Chain
	rules  map[string][]*nftables.Rule
	// sets are by name; elements holds the elements read so far.
	sets     map[string]*nftables.Set
	elements map[string]elements
}

// OpenKernel reads which chains and sets the table of the calling thread's network namespace has.
// Its methods must run in that namespace too.
func OpenKernel() (*Kernel, error) {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	wire, err := nfnl.Open()
	if err != nil {
		return nil, errors.Join(err, c.CloseLasting())
	}
	k := &Kernel{conn: c, wire: wire, rules: map[string][]*nftables.Rule{},
		sets: map[string]*nftables.Set{}, elements: map[string]elements{}}
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
		k.sets[s.Name] = s
	}
	return nil
}

// Close closes the connections to the kernel.
func (k *Kernel) Close() error { return errors.Join(k.conn.CloseLasting(), k.wire.Close()) }

// Packet is the first packet of a flow, as the hooks of the table see it: input where it goes to this
// node, otherwise postrouting.
type Packet struct {
	policy.Flow
	// FromNode reports whether a process of this node made it.
	FromNode bool
}

// Decision is what the table does with a packet.
type Decision struct {
	Verdict policy.Verdict
	// Rule is the chain and the text of the rule that decided. "" means the end of a chain.
	Rule string
}

// Judge interprets the rules and the elements of sets as nf_tables does. An error names the part of
// the table that differs from what this package writes. Judge does not see conditions that the
// nftables library cannot read.
func (k *Kernel) Judge(p Packet) (Decision, error) {
	if k.chains == nil {
		return Decision{policy.Allow, "there is no table " + ourTable.Name}, nil
	}
	m := &machine{kernel: k, packet: p}
	m.network, m.transport = headers(p.Flow)
	for _, at := range hooksOf(p) {
		missing, err := k.isChain(at)
		if err != nil {
			return Decision{}, err
		}
		if missing {
			m.decision.Rule = "there is no chain " + at.name
			continue
		}
		if _, err := m.chain(at.name); err != nil || m.decision.Verdict != policy.Allow {
			return m.decision, err
		}
	}
	return m.decision, nil
}

// hooked is a chain and its hook.
type hooked struct {
	name     string
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
}

// hooksOf returns the chains at hooks that a packet passes, in this order.
func hooksOf(p Packet) []hooked {
	if p.ToNode {
		return []hooked{{hostErrors, nftables.ChainHookInput, priorityErrors},
			{abi.NFTPolicyHost, nftables.ChainHookInput, priorityInput}}
	}
	return []hooked{{abi.NFTPolicyPost, nftables.ChainHookPostrouting, priorityPost}}
}

// isChain reports whether a chain is missing. The error describes how it differs from the wanted
// one.
func (k *Kernel) isChain(at hooked) (missing bool, err error) {
	ch := k.chains[at.name]
	want := hookText(&nftables.Chain{Hooknum: at.hook, Priority: &at.priority})
	switch {
	case ch == nil:
		return true, nil
	case hookText(ch) != want || ch.Type != nftables.ChainTypeFilter:
		return false, fmt.Errorf("chain %s is of type %s at %q, want filter at %q", at.name,
			ch.Type, hookText(ch), want)
	case ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept:
		return false, fmt.Errorf("the policy of chain %s is not accept", at.name)
	}
	return false, nil
}

// headers returns the network and the transport header of the first packet of a flow, with the
// fields that rules may load.
func headers(f policy.Flow) (network, transport []byte) {
	src, dst := f.Src.AsSlice(), f.Dst.AsSlice()
	network, transport = make([]byte, 40), make([]byte, 64)
	family := families[indexOf(f.Src)]
	copy(network[family.saddr:], src)
	copy(network[family.daddr:], dst)

	if f.Quotes.IsValid() {
		copy(transport[family.quoted:], f.Quotes.AsSlice())
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

// has reports whether a set has the key that begins data.
func (k *Kernel) has(name string, data []byte) (bool, error) {
	s := k.sets[name]
	if s == nil {
		return false, fmt.Errorf("set %s does not exist", name)
	}
	have, read := k.elements[name]
	if !read {
		var err error
		if have, err = readSet(k.wire, name); err != nil {
			return false, err
		}
		k.elements[name] = have
	}
	if s.Interval && s.Concatenation {
		return inBox(have, data), nil
	}
	if s.Interval {
		return inInterval(have, data), nil
	}
	for e := range have { // Keys of one set are of one length.
		return len(e)-1 <= len(data) && have[key(data[:len(e)-1])], nil
	}
	return false, nil
}

// inBox reports whether each field of the key in data is between those of both corners of a box. A
// field has 4 bytes, or is an address of 16.
func inBox(have elements, data []byte) bool {
	for e := range have {
		size := (len(e) - 1) / 2
		if e[0] != keyRange[0] || size < 12 || size > len(data) {
			continue
		}
		first, last, inside := e[1:1+size], e[1+size:], true
		for from, to := 0, size-8; inside && from < size; from, to = to, to+4 {
			at := string(data[from:to])
			inside = first[from:to] <= at && at <= last[from:to]
		}
		if inside {
			return true
		}
	}
	return false
}

// inInterval reports whether the last boundary that is not above the key in data is a start.
func inInterval(have elements, data []byte) bool {
	var last []byte
	start := false
	for e := range have {
		at, begins := []byte(e[1:]), e[0] == 0
		if len(at) > len(data) || bytes.Compare(at, data[:len(at)]) > 0 {
			continue
		}
		if c := bytes.Compare(at, last); last == nil || c > 0 || c == 0 && begins {
			last, start = at, begins
		}
	}
	return start
}

// textOf returns the text of a rule that this package wrote. ok is false for a rule of another
// program.
func textOf(r *nftables.Rule) (text string, ok bool) {
	return userdata.GetString(r.UserData, userdata.TypeComment)
}

// counterOf returns the verdict whose packets a rule with a counter drops.
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
