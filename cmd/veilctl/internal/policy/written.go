package policy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

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
			err = readDocument(document, namespace, w)
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
	}
}

// readDocument adds one policy, or the items of a List, to w.
func readDocument(document []byte, namespace string, w *policy.Written) error {
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
	switch head.Kind {
	case "List", policy.KindNetworkPolicy + "List", policy.KindClusterNetworkPolicy + "List":
		for i, item := range head.Items {
			if err := readDocument(item, namespace, w); err != nil {
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
