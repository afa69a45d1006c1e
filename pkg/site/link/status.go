package link

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/kube/object"
	"github.com/kubeveil/kubeveil/pkg/site/inventory"
	"github.com/kubeveil/kubeveil/pkg/site/mirror"
	"github.com/kubeveil/kubeveil/pkg/site/publish"
	"github.com/kubeveil/kubeveil/pkg/site/record"
)

// Bounds of the texts of a SiteLink. The schema has the same.
const (
	maxProblems = 32
	maxProblem  = 1024 // bytes
)

// tokenWarning is the time before the end of a token at which it becomes a condition.
const tokenWarning = 7 * 24 * time.Hour

// Conditions of a SiteLink.
const (
	conditionReady    = "Ready"
	conditionReadable = "Readable"
	conditionOverlap  = "Overlap"
	conditionToken    = "TokenEnds"
)

// linkStatus is the status of a SiteLink.
type linkStatus struct {
	Nodes      int                `json:"nodes"`
	Imports    int                `json:"imports"`
	Endpoints  int                `json:"endpoints"`
	Exports    int                `json:"exports"`
	Refused    int                `json:"refused"`
	Problems   []string           `json:"problems,omitempty"`
	Conditions []metav1.Condition `json:"conditions"`
}

// withConditions returns the conditions of an object with these ones set. The time of a condition
// changes only with its status.
func withConditions(has []metav1.Condition, set ...metav1.Condition) (out []metav1.Condition,
	changed bool) {
	out = slices.Clone(has)
	for _, c := range set {
		i := slices.IndexFunc(out, func(o metav1.Condition) bool { return o.Type == c.Type })
		if i < 0 {
			c.LastTransitionTime = metav1.Now()
			out, changed = append(out, c), true
			continue
		}
		c.LastTransitionTime, c.ObservedGeneration = out[i].LastTransitionTime,
			out[i].ObservedGeneration
		if c == out[i] {
			continue
		}
		if c.Status != out[i].Status {
			c.LastTransitionTime = metav1.Now()
		}
		out[i], changed = c, true
	}
	return out, changed
}

// condition returns a condition that is true if message is "" and false otherwise.
func condition(kind, reason, otherwise, message string) metav1.Condition {
	if message == "" {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: otherwise,
		Message: message}
}

// writeExports writes the conditions of this cluster's ServiceExports.
func (l *Linker) writeExports(ctx context.Context, w *writer, now inventory.State, in publish.Input,
	out mirror.Output, stated map[string]publish.Stated) {
	left := map[record.Key]bool{}
	for _, s := range stated {
		for _, k := range s.Left {
			left[k] = true
		}
	}

	for k := range w.inTurn("exports", sortedKeys(now.Exports), func(record.Key) string {
		return payerExports
	}) {
		e := now.Exports[k]
		if now.Unread[k] > 0 && now.Services[k].Version == "" {
			continue
		}
		valid := condition(string(mcs.ServiceExportConditionValid),
			string(mcs.ServiceExportReasonValid), string(mcs.ServiceExportReasonInvalidServiceType),
			"")
		if s := in.Services[k]; s == nil {
			valid.Status, valid.Reason = metav1.ConditionFalse,
				string(mcs.ServiceExportReasonNoService)
			valid.Message = fmt.Sprintf("there is no Service %s: create it, or delete the export",
				k)
		} else if problem := s.Exportable(); problem != "" {
			valid.Status, valid.Message = metav1.ConditionFalse, problem
			valid.Reason = string(mcs.ServiceExportReasonInvalidServiceType)
		}

		problem := ""
		if valid.Status == metav1.ConditionFalse {
			problem = "it is not valid"
		} else if left[k] {
			problem = fmt.Sprintf("a site reads at most %d services and %d endpoints, each "+
				"namespace has the same share, and its older exports come first",
				record.MaxServices, record.MaxAllEndpoints)
		}
		ready := condition(string(mcs.ServiceExportConditionReady),
			string(mcs.ServiceExportReasonExported), string(mcs.ServiceExportReasonFailed), problem)
		if problem == "" {
			ready.Message = clipped(strings.Join(e.NotCopied, ". "))
		}

		conflict := metav1.Condition{Type: string(mcs.ServiceExportConditionConflict),
			Status: metav1.ConditionFalse, Reason: string(mcs.ServiceExportReasonNoConflicts)}
		if m := out.Imports[k]; m != nil && len(m.Reasons) > 0 {
			conflict.Status, conflict.Reason = metav1.ConditionTrue, strings.Join(m.Reasons, ",")
			conflict.Message = m.Conflict
		}

		if conditions, changed := withConditions(e.Conditions, valid, ready, conflict); changed {
			w.putStatus(ctx, object.ServiceExports, k, &mcs.ServiceExport{TypeMeta: metav1.TypeMeta{
				APIVersion: mcs.GroupVersion.String(), Kind: mcs.ServiceExportKindName},
				ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name,
					ResourceVersion: e.Version},
				Status: mcs.ServiceExportStatus{Conditions: conditions}})
		}
	}
}

// writeLinks writes a SiteLink for each site, and deletes the others.
func (l *Linker) writeLinks(ctx context.Context, w *writer, now inventory.State, out mirror.Output,
	stated map[string]publish.Stated, foreign map[string][]string) {
	w.payer = payerLinks
	wanted := map[record.Key]bool{}
	for _, s := range l.Sites {
		k := record.Key{Name: s.Name}
		wanted[k] = true
		has, exists := now.Links[k]
		if !exists {
			w.put(ctx, object.SiteLinks, k, "", custom(object.SiteLinkKind, k, ""))
			continue // the status follows in the next round
		}
		status := l.linkStatus(now, s, out.Reports[s.Name], stated[s.Name], foreign[s.Name],
			w.failed)
		status.Conditions, _ = withConditions(conditionsOf(has.Raw), status.Conditions...)
		o, err := statusOf(object.SiteLinkKind, k, has, status)
		if err != nil {
			w.note("encode", object.SiteLinks, k, err)
		} else if o != nil {
			w.putStatus(ctx, object.SiteLinks, k, o)
		}
	}
	for _, k := range sortedKeys(now.Links) {
		if !wanted[k] && now.Links[k].Ours {
			w.remove(ctx, object.SiteLinks, k, now.Links[k].Version)
		}
	}
}

// linkStatus returns the status of the link to a site.
func (l *Linker) linkStatus(now inventory.State, s cluster.Site, r *mirror.Report, stated publish.Stated,
	foreign []string, failed map[string]string) linkStatus {
	status := linkStatus{Nodes: r.Nodes, Imports: r.Imports, Endpoints: r.Endpoints,
		Exports: stated.Exports, Refused: r.Refused}
	unreadable, token := "", ""
	var problems []string
	if remote := l.remotes[s.Name]; remote != nil {
		v, ends, problem := remote.state()
		unreadable = problem
		if v.left > 0 {
			status.Refused += v.left
			problems = append(problems, fmt.Sprintf("%d records of the site are left out, such "+
				"as %s",
				v.left, v.problem))
		}
		if left := time.Until(ends); !ends.IsZero() && left < tokenWarning {
			token = fmt.Sprintf("the token for site %s ends at %s: make a new one by veilctl site "+
				"link", s.Name, ends.UTC().Format(time.RFC3339))
		}
	} else {
		unreadable = "the site is closed: set reach in the configuration to open it"
	}

	namespace := NamespacePrefix + s.Name
	if _, exists := now.Namespaces[record.Key{Name: namespace}]; !exists && s.Open() {
		problems = append(problems, fmt.Sprintf("nothing is stated to the site, because there is "+
			"no namespace %s: create it, with a service account that may read SiteRecords there",
			namespace))
	}
	if l.DeadUnknown != nil && s.Open() && len(s.Imports) > 0 {
		if why := l.DeadUnknown(); why != "" {
			problems = append(problems, why)
		}
	}
	if now.Left > 0 {
		more := ""
		if now.LeftMore {
			more = " or more"
		}
		problems = append(problems, fmt.Sprintf("%d%s Services and EndpointSlices of exports are "+
			"left out, because their namespace has more than %d endpoints", now.Left, more,
			inventory.MaxWeight))
	}
	problems = slices.Concat(problems, r.Problems, foreign, stated.Problems)
	for _, what := range slices.Sorted(maps.Keys(failed)) {
		problems = append(problems, what+": "+failed[what])
	}
	for _, p := range problems[:min(len(problems), maxProblems)] {
		status.Problems = append(status.Problems, clipped(p))
	}

	all := unreadable
	if all == "" {
		all = r.Overlap
	}
	if all == "" && len(problems) > 0 {
		all = problems[0]
	}
	status.Conditions = []metav1.Condition{
		condition(conditionReady, "Linked", "Problem", clipped(all)),
		condition(conditionReadable, "Read", "NotRead", clipped(unreadable)),
		inverse(conditionOverlap, "Apart", clipped(r.Overlap)),
		inverse(conditionToken, "Lasts", clipped(token)),
	}
	return status
}

// inverse returns a condition that is true if there is a message.
func inverse(kind, reason, message string) metav1.Condition {
	if message == "" {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: kind,
		Message: message}
}

// clipped returns at most maxProblem bytes of text, in valid UTF-8.
func clipped(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxProblem)], "")
}

// conditionsOf returns the conditions in the status of a SiteLink.
func conditionsOf(raw string) []metav1.Condition {
	var s linkStatus
	if object.Unmarshal([]byte(raw), &s) != nil {
		return nil
	}
	return s.Conditions
}
