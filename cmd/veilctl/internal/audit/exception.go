package audit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/audit/result"
	"github.com/kubeveil/kubeveil/docs"
	"github.com/kubeveil/kubeveil/pkg/config"
)

// exception is a row of the exceptions in docs/security.md, as plain text.
type exception struct {
	number            int
	clear, whom, shut string
}

var (
	exceptionRow = regexp.MustCompile(`(?m)^\| (\d+) \| (.+) \| (.+) \| (.+) \|$`)
	markdownLink = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
	markup       = strings.NewReplacer("`", "", "**", "")
)

// exceptions returns the rows of the table of exceptions in document, which is docs/security.md.
func exceptions(document string) (rows []exception) {
	_, below, _ := strings.Cut(document, "\n## Exceptions\n")
	section, _, _ := strings.Cut(below, "\n## ")
	plain := func(cell string) string {
		return markup.Replace(markdownLink.ReplaceAllString(cell, "$1"))
	}
	for _, m := range exceptionRow.FindAllStringSubmatch(section, -1) {
		number, err := strconv.Atoi(m[1])
		if err != nil {
			continue // the number is too large for an int
		}
		rows = append(rows, exception{number, plain(m[2]), plain(m[3]), plain(m[4])})
	}
	return rows
}

// state is the answer to whether an exception is in force.
type state string

const (
	open    state = "open"
	closed  state = "closed"
	unknown state = "not known"
)

// setting holds the facts that decide which exceptions are in force.
type setting struct {
	// cfg is veild's configuration, and from names its origin. unread is the reason why it could
	// not be read; "" if it could.
	cfg          config.Config
	from, unread string
	// groups are the API groups of the cluster.
	groups []string
	// volumes reports whether pods of veil-csi exist. podsUnread is the reason why Kubeveil's pods
	// could not be read; "" if they could.
	volumes    bool
	podsUnread string
	// sources holds TunnelSources of telemetry.Status, by node.
	sources map[string]string
}

// byConfig returns the state of an exception that the configuration opens or closes, and why.
func (s setting) byConfig(isOpen bool, why string) (state, string) {
	switch {
	case s.unread != "":
		return unknown, "veild's configuration could not be read: " + s.unread
	case isOpen:
		return open, why + ", by the configuration of " + s.from
	}
	return closed, why + ", by the configuration of " + s.from
}

// always returns the judgement of an exception that is always open, because of why.
func always(why string) func(setting) (state, string) {
	return func(setting) (state, string) { return open, why }
}

// judgements holds the function that decides whether an exception is in force, by the exception's
// number.
var judgements = map[int]func(setting) (state, string){
	1: func(s setting) (state, string) {
		return s.byConfig(s.cfg.Masquerade, fmt.Sprintf("masquerade: %t", s.cfg.Masquerade))
	},
	2: always("no setting closes it"),
	3: always("open for each Service and pod that listens outside"),
	4: always("no setting closes it"),
	5: always("no setting closes it"),
	6: always("no setting closes it"),
	7: func(setting) (state, string) {
		return unknown, "only the nodes show whether kubeveil-close.service is installed"
	},
	8: func(s setting) (state, string) {
		text := s.cfg.OpenNodeRanges()
		if text == "" {
			return s.byConfig(false, "nodeRanges and outside are set")
		}
		return s.byConfig(true, "pods reach "+text)
	},
	9: func(s setting) (state, string) {
		if s.unread == "" && s.cfg.ServiceProxy == config.ServiceProxyEBPF {
			return open, "serviceProxy: ebpf keeps an address closed only as long as a pod " +
				"exists that had a flow to it"
		}
		return open, "open after a Service with such an address is deleted"
	},
	10: always("open for each Service with a host name or ipMode: Proxy"),
	11: func(s setting) (state, string) {
		if slices.Contains(s.groups, "k8s.cni.cncf.io") {
			return open, "the API server has the API group of Multus, k8s.cni.cncf.io"
		}
		return unknown, "the API server has no Multus (k8s.cni.cncf.io); other ways to add " +
			"interfaces to pods were not checked"
	},
	12: always("open for each Service with externalTrafficPolicy: Local"),
	13: always("no setting closes it"),
	14: byVolumes,
	15: byVolumes,
	16: byRoaming,
	17: func(s setting) (state, string) {
		if len(s.cfg.LinkLocalOutside) == 0 {
			return s.byConfig(false, "linkLocalOutside: []")
		}
		return s.byConfig(true, fmt.Sprintf("linkLocalOutside: %v", s.cfg.LinkLocalOutside))
	},
}

func byVolumes(s setting) (state, string) {
	switch {
	case s.podsUnread != "":
		return unknown, "veil-csi may be installed, but its pods could not be read: " + s.podsUnread
	case s.volumes:
		return open, "veil-csi is installed"
	}
	return closed, "no pod of veil-csi exists"
}

func byRoaming(s setting) (state, string) {
	for _, node := range slices.Sorted(maps.Keys(s.sources)) {
		if text := s.sources[node]; strings.HasPrefix(text, "anywhere") {
			return open, fmt.Sprintf("%s accepts tunnel datagrams from %s", node, text)
		}
	}
	return s.byConfig(s.cfg.Tunnel.Roaming, fmt.Sprintf("tunnel.roaming: %t", s.cfg.Tunnel.Roaming))
}

// judgeExceptions returns the section about exceptions.
func judgeExceptions(s setting) *result.Section {
	section := &result.Section{Name: "exceptions", Title: "Exceptions in force", Informs: true,
		Text: "What Kubeveil does not encrypt or prove, as docs/security.md of this veilctl lists " +
			"it. Open exceptions are documented, so they do not change the verdict of the report.",
		Head: []string{"no.", "what is clear", "who is affected", "why it is open or closed",
			"how to close it"}}
	for _, e := range exceptions(docs.Security) {
		found, why := unknown, "this veilctl has no rule for it"
		if judge := judgements[e.number]; judge != nil {
			found, why = judge(s)
		}
		row := result.Row{Verdict: result.Note, Word: string(found),
			Cells: []string{strconv.Itoa(e.number), e.clear, e.whom, why, e.shut}}
		switch found {
		case closed:
			row.Verdict = result.Good
		case unknown:
			row.Why = why
		}
		section.Rows = append(section.Rows, row)
	}
	return section
}
