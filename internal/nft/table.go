package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Table is the content of a table of the family inet, wanted or read.
type Table struct {
	Name   string
	Chains []Chain
	Sets   []Set
	// Counters are the names of the counters.
	Counters []string
	// Flowtable is the name of the flow table; "" means that there is none. Devices are the links
	// of the flow table. Diff does not compare them.
	Flowtable string
	Devices   []string
	// Dormant reports whether another program turned the hooks of the table off, so that the table
	// sees no packet. It must be false in a wanted table.
	Dormant bool
}

// Chain is a chain and its rules. The Table of the embedded chain is not used.
type Chain struct {
	nftables.Chain
	Rules []Rule
}

// Base returns a base chain, which is at a hook. Its policy is accept.
func Base(name string, typ nftables.ChainType, hook *nftables.ChainHook,
	priority nftables.ChainPriority, rules ...Rule) Chain {
	return Chain{nftables.Chain{Name: name, Type: typ, Hooknum: hook, Priority: &priority}, rules}
}

// Target returns a chain without a hook, to which rules jump.
func Target(name string, rules ...Rule) Chain { return Chain{nftables.Chain{Name: name}, rules} }

// Set is a set or a map. The Table of the embedded set is not used.
type Set struct {
	nftables.Set
	// Shared reports whether another program or a rule adds and removes the elements. Read and Diff
	// then ignore them.
	Shared   bool
	Elements []Element
}

// Element is an element of a set, in the kernel's encoding.
type Element struct {
	Key string
	// End is the exclusive end of an interval; "" means the end of all keys. Only elements of
	// interval sets have one.
	End string
	// Value is the value of the key in a map.
	Value string
}

// Key returns an element whose key is the concatenation of fields.
func Key(fields ...[]byte) Element { return Element{Key: string(slices.Concat(fields...))} }

// Addr returns the element for an address.
func Addr(a netip.Addr) Element { return Key(a.AsSlice()) }

// Interval returns the element of an interval set for a prefix. p must be masked.
func Interval(p netip.Prefix) Element {
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return Element{Key: string(p.Addr().AsSlice()), End: string(end.Next().AsSlice())}
}

// Set returns the set of that name in t. If there is none, or if t is nil, it returns a new empty
// set.
func (t *Table) Set(name string) *Set {
	if t != nil {
		for i := range t.Sets {
			if t.Sets[i].Name == name {
				return &t.Sets[i]
			}
		}
	}
	return new(Set)
}

// String returns all properties that Diff compares, except elements, in a fixed order. Tables with
// equal texts are equal except for elements. It returns "" for a nil table.
func (t *Table) String() string {
	if t == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s\n", t.Name)
	objects := t.objects()
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		fmt.Fprintf(&b, "%s%v\n", name, objects[name])
	}
	return b.String()
}

// objects returns the objects of the table by kind and name, for comparison with reflect.DeepEqual.
func (t *Table) objects() map[string]any {
	all := make(map[string]any)
	for _, c := range t.Chains {
		all["chain "+c.Name] = content{c.hook(), append([]Rule(nil), c.Rules...)}
	}
	for _, s := range t.Sets {
		all["set "+s.Name] = s.text()
	}
	for _, name := range t.Counters {
		all["counter "+name] = ""
	}
	if t.Flowtable != "" {
		all["flowtable "+t.Flowtable] = ""
	}
	if t.Dormant {
		all["flag dormant"] = ""
	}
	return all
}

// content holds the compared properties of a chain.
type content struct {
	hook  string
	rules []Rule
}

func (c content) String() string {
	var b strings.Builder
	b.WriteString(c.hook)
	for _, rule := range c.rules {
		b.WriteString("\n ")
		for _, e := range rule {
			writeExpr(&b, e)
		}
	}
	return b.String()
}

func (c Chain) hook() string {
	if c.Hooknum == nil || c.Priority == nil {
		return ""
	}
	text := fmt.Sprintf(" type %s hook %d priority %d", c.Type, *c.Hooknum, *c.Priority)
	if c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
		text += " policy drop"
	}
	return text
}

func (s Set) text() string {
	text := fmt.Sprintf(" type %s %d", s.KeyType.Name, s.KeyType.Bytes)
	if s.IsMap {
		text += fmt.Sprintf(" : %s %d", s.DataType.Name, s.DataType.Bytes)
	}
	if s.Interval {
		text += " interval"
	}
	return text
}

// writeExpr writes the type of an expression and the fields of it that are not zero.
func writeExpr(b *strings.Builder, e expr.Any) {
	v := reflect.ValueOf(e).Elem()
	fmt.Fprintf(b, " %s{", v.Type().Name())
	for i := range v.NumField() {
		if v.Field(i).Type() == reflect.TypeFor[[]expr.Any]() {
			for j := range v.Field(i).Len() {
				writeExpr(b, v.Field(i).Index(j).Interface().(expr.Any))
			}
			continue
		}
		verb := "%s:%v "
		if v.Field(i).Kind() == reflect.Slice {
			verb = "%s:%x "
		}
		if !v.Field(i).IsZero() {
			fmt.Fprintf(b, verb, v.Type().Field(i).Name, v.Field(i))
		}
	}
	b.WriteByte('}')
}
