package exportfeed

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/export"
	"github.com/kubeveil/kubeveil/pkg/kube/feed"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
)

// maxSites bounds the names in cluster.SitesAnnotation.
const maxSites = 64

// maxName bounds the bytes of a name. A longer one is the name of no site.
const maxName = 63

// malformedElements are the elements of an object with a problem, because it has a line in status.
const malformedElements = 64

// parseExport parses a ServiceExport. If its sites cannot be read, it is for no site.
func parseExport(o *object.Object) feed.Parsed[export.Export] {
	e := export.Export{Name: export.Name{Namespace: o.Namespace, Name: o.Name}}
	if o.AnnotationsExcess {
		e.Named = true
		return feed.Parsed[export.Export]{Value: &e, Elements: malformedElements,
			Problem: fmt.Sprintf("its annotations have more than %d bytes, so it is for no site",
				object.MaxMetaJSON)}
	}
	text, named := o.Annotations[cluster.SitesAnnotation]
	if !named {
		return feed.Parsed[export.Export]{Value: &e, Elements: 1}
	}

	e.Named = true
	if strings.Count(text, ",") >= maxSites {
		return feed.Parsed[export.Export]{Value: &e, Elements: malformedElements,
			Problem: fmt.Sprintf("annotation %s has more than %d names, so it is for no site",
				cluster.SitesAnnotation, maxSites)}
	}
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			e.Sites = append(e.Sites, strings.Clone(name[:min(len(name), maxName+1)]))
		}
	}
	slices.Sort(e.Sites)
	e.Sites = slices.Compact(e.Sites)
	return feed.Parsed[export.Export]{Value: &e, Elements: max(1, len(e.Sites))}
}

// protocols are the numbers of protocols in an IP header. An absent name means TCP.
var protocols = map[string]uint8{"": 6, "TCP": 6, "UDP": 17, "SCTP": 132}

// parseSlice parses an EndpointSlice. It returns no value for a slice without a service, without
// ports, or without an endpoint of the node. Ports without a number mean all ports and stay closed.
func parseSlice(o *object.Object, node string) feed.Parsed[export.Slice] {
	owner := o.Labels[object.ServiceNameLabel]
	if owner == "" {
		return feed.Parsed[export.Slice]{}
	}
	w, problem := object.EndpointSlice(o)
	if problem != "" {
		return feed.Parsed[export.Slice]{Problem: problem + "; it stays closed to sites",
			Elements: malformedElements}
	}

	s := export.Slice{Service: export.Name{Namespace: o.Namespace, Name: owner}, Name: o.Name}
	of := unique.Make(node)
	for _, e := range w.Endpoints {
		if e.Node == of && e.Addr.IsValid() {
			s.Addrs = append(s.Addrs, e.Addr)
		}
	}
	for _, p := range w.Ports {
		protocol, known := protocols[p.Protocol]
		if known && p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
			s.Ports = append(s.Ports, export.Port{Protocol: protocol, Port: uint16(*p.Port)})
		}
	}
	if len(s.Addrs) == 0 || len(s.Ports) == 0 {
		return feed.Parsed[export.Slice]{}
	}
	slices.SortFunc(s.Addrs, netip.Addr.Compare)
	return feed.Parsed[export.Slice]{Value: &s, Elements: len(s.Addrs) * len(s.Ports)}
}
