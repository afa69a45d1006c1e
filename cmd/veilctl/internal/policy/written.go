package policy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/kubeveil/kubeveil/pkg/policy"
)

// maxFile is the maximum size in bytes of a file of policies.
const maxFile = 1 << 20

// read reads policies, as YAML documents or JSON, and adds them to w. A NetworkPolicy without a
// namespace gets namespace.
func read(in io.Reader, namespace string, w *policy.Written) error {
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return err
	}
	if len(text) > maxFile {
		return fmt.Errorf("it has more than %d KiB", maxFile>>10)
	}

	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = readDocument(document, metav1.TypeMeta{}, namespace, w)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
	}
}

// readDocument adds one policy, or the items of a list, to w. A document without apiVersion and kind
// has those of item, unless that is empty.
func readDocument(document []byte, item metav1.TypeMeta, namespace string,
	w *policy.Written) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	if string(text) == "null" {
		return nil
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}

	if err := json.Unmarshal(text, &head); err != nil {
		return errors.New("it is not an object with apiVersion and kind, or a list of such objects")
	}
	if head.TypeMeta == (metav1.TypeMeta{}) && item != (metav1.TypeMeta{}) {
		head.TypeMeta = item
		if text, err = withType(text, item); err != nil {
			return err
		}
	}
	switch head.Kind {
	case "List", policy.KindNetworkPolicy + "List", policy.KindClusterNetworkPolicy + "List":
		for i, raw := range head.Items {
			if err := readDocument(raw, typeOfItems(head.TypeMeta), namespace, w); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	case policy.KindNetworkPolicy:
		return readNetworkPolicy(text, head.APIVersion, namespace, w)
	case policy.KindClusterNetworkPolicy:
		if err := check(w); err != nil {
			return err
		}
		w.JSON = append(w.JSON, text)
		return nil
	}
	return fmt.Errorf("kind %q is not known here: write NetworkPolicy (networking.k8s.io/v1) or "+
		"ClusterNetworkPolicy (policy.networking.k8s.io/v1alpha2)", head.Kind)
}

// typeOfItems returns the type of items without one in a list, or the zero value if they must have
// one. The API server leaves it out in lists of a built-in kind, and kubectl completes it alike
// (UnstructuredJSONScheme in k8s.io/apimachinery).
func typeOfItems(list metav1.TypeMeta) metav1.TypeMeta {
	if list.Kind == "List" {
		return metav1.TypeMeta{}
	}
	return metav1.TypeMeta{APIVersion: list.APIVersion, Kind: strings.TrimSuffix(list.Kind, "List")}
}

// withType returns an object with this apiVersion and kind.
func withType(object []byte, of metav1.TypeMeta) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = of.APIVersion, of.Kind
	return json.Marshal(fields)
}

// fromJSON decodes objects and refuses unknown fields. toProtobuf encodes objects with the envelope
// that the API server uses.
var (
	fromJSON = serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, scheme.Scheme,
		scheme.Scheme, serializer.SerializerOptions{Strict: true})
	toProtobuf = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
)

func readNetworkPolicy(text []byte, version, namespace string, w *policy.Written) error {
	if want := networkingv1.SchemeGroupVersion.String(); version != want {
		return fmt.Errorf("NetworkPolicy of apiVersion %q: write %s", version, want)
	}
	p := new(networkingv1.NetworkPolicy)
	if _, _, err := fromJSON.Decode(text, nil, p); err != nil {
		return fmt.Errorf("NetworkPolicy: %w", err)
	}
	if p.Namespace == "" {
		p.Namespace = namespace
	}
	if err := validate(p); err != nil {
		return fmt.Errorf("NetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	if err := check(w); err != nil {
		return err
	}

	message, err := runtime.Encode(toProtobuf, p)
	if err != nil {
		return fmt.Errorf("NetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	w.Protobuf = append(w.Protobuf, message)
	return nil
}

// check returns an error if w is full.
func check(w *policy.Written) error {
	if len(w.Protobuf)+len(w.JSON)+len(w.Delete) >= policy.MaxWritten {
		return fmt.Errorf("more than %d policies: try fewer at once", policy.MaxWritten)
	}
	return nil
}

// validate returns an error for malformed names and labels. The API server would refuse them, but
// veild does not check them.
func validate(p *networkingv1.NetworkPolicy) error {
	if p.Namespace == "" {
		return errors.New("metadata.namespace is missing: write it, or give --namespace")
	}
	errs := validation.ValidateObjectMeta(&p.ObjectMeta, true, validation.NameIsDNSSubdomain,
		field.NewPath("metadata"))
	spec := field.NewPath("spec")
	selector := func(s *metav1.LabelSelector, path *field.Path) {
		if s != nil {
			errs = append(errs, metavalidation.ValidateLabelSelector(s,
				metavalidation.LabelSelectorValidationOptions{}, path)...)
		}
	}
	peers := func(peers []networkingv1.NetworkPolicyPeer, path *field.Path) {
		for i, peer := range peers {
			selector(peer.PodSelector, path.Index(i).Child("podSelector"))
			selector(peer.NamespaceSelector, path.Index(i).Child("namespaceSelector"))
		}
	}

	selector(&p.Spec.PodSelector, spec.Child("podSelector"))
	for i, r := range p.Spec.Ingress {
		peers(r.From, spec.Child("ingress").Index(i).Child("from"))
	}
	for i, r := range p.Spec.Egress {
		peers(r.To, spec.Child("egress").Index(i).Child("to"))
	}
	for i, t := range p.Spec.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress {
			errs = append(errs, field.NotSupported(spec.Child("policyTypes").Index(i), t,
				[]string{"Ingress", "Egress"}))
		}
	}
	return errs.ToAggregate()
}
