package main

import (
	"context"

	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	events "k8s.io/api/events/v1"
	rbac "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	serveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// A builtin kind is stored as its Go type reads it.
type builtin struct {
	plural, singular, short string
	scope                   apimeta.RESTScopeName
	hasStatus               bool
	object, list            runtime.Object
}

// An API group in the one version that is served.
type apiGroup struct {
	version schema.GroupVersion
	add     func(*runtime.Scheme) error
	kinds   []builtin
}

const (
	inCluster   = apimeta.RESTScopeNameRoot
	inNamespace = apimeta.RESTScopeNameNamespace
)

var groups = []apiGroup{
	{core.SchemeGroupVersion, core.AddToScheme, []builtin{
		{"namespaces", "namespace", "ns", inCluster, true, &core.Namespace{}, &core.NamespaceList{}},
		{"pods", "pod", "po", inNamespace, true, &core.Pod{}, &core.PodList{}},
		{"services", "service", "svc", inNamespace, true, &core.Service{}, &core.ServiceList{}},
		{"serviceaccounts", "serviceaccount", "sa", inNamespace, false, &core.ServiceAccount{}, &core.ServiceAccountList{}},
		{"configmaps", "configmap", "cm", inNamespace, false, &core.ConfigMap{}, &core.ConfigMapList{}},
		{"secrets", "secret", "", inNamespace, false, &core.Secret{}, &core.SecretList{}},
		{"events", "event", "ev", inNamespace, false, &core.Event{}, &core.EventList{}},
	}},
	{apps.SchemeGroupVersion, apps.AddToScheme, []builtin{
		{"deployments", "deployment", "deploy", inNamespace, true, &apps.Deployment{}, &apps.DeploymentList{}},
	}},
	{coordination.SchemeGroupVersion, coordination.AddToScheme, []builtin{
		{"leases", "lease", "", inNamespace, false, &coordination.Lease{}, &coordination.LeaseList{}},
	}},
	{discovery.SchemeGroupVersion, discovery.AddToScheme, []builtin{
		{"endpointslices", "endpointslice", "", inNamespace, false, &discovery.EndpointSlice{}, &discovery.EndpointSliceList{}},
	}},
	{events.SchemeGroupVersion, events.AddToScheme, []builtin{
		{"events", "event", "ev", inNamespace, false, &events.Event{}, &events.EventList{}},
	}},
	{rbac.SchemeGroupVersion, rbac.AddToScheme, []builtin{
		{"roles", "role", "", inNamespace, false, &rbac.Role{}, &rbac.RoleList{}},
		{"rolebindings", "rolebinding", "", inNamespace, false, &rbac.RoleBinding{}, &rbac.RoleBindingList{}},
		{"clusterroles", "clusterrole", "", inCluster, false, &rbac.ClusterRole{}, &rbac.ClusterRoleList{}},
		{"clusterrolebindings", "clusterrolebinding", "", inCluster, false, &rbac.ClusterRoleBinding{}, &rbac.ClusterRoleBindingList{}},
	}},
}

// serveBuiltin serves them beside the custom resources, and lets roles read what it stores of their kinds.
func serveBuiltin(to *server.GenericAPIServer, etcd serveroptions.EtcdOptions, roles *storedRoles) error {
	scheme := runtime.NewScheme()
	for _, group := range groups {
		if err := group.add(scheme); err != nil {
			return err
		}
		// Handlers convert to an internal version, and here the served one is as good.
		internal := schema.GroupVersion{Group: group.version.Group, Version: runtime.APIVersionInternal}
		for _, kind := range group.kinds {
			scheme.AddKnownTypes(internal, kind.object, kind.list)
		}
		if err := scheme.SetVersionPriority(group.version); err != nil {
			return err
		}
	}
	meta.AddToGroupVersion(scheme, core.SchemeGroupVersion)
	codecs := serializer.NewCodecFactory(scheme)

	for _, group := range groups {
		storage := map[string]rest.Storage{}
		for _, kind := range group.kinds {
			store, err := newStore(group.version, kind, scheme, codecs, etcd)
			if err != nil {
				return err
			}
			storage[kind.plural] = resource{store, kind.short}
			if kind.hasStatus {
				storage[kind.plural+"/status"] = status{of: store}
			}
			switch kind.object.(type) {
			case *rbac.Role:
				roles.roles = store
			case *rbac.RoleBinding:
				roles.roleBindings = store
			case *rbac.ClusterRole:
				roles.clusterRoles = store
			case *rbac.ClusterRoleBinding:
				roles.clusterRoleBindings = store
			}
		}
		info := server.NewDefaultAPIGroupInfo(group.version.Group, scheme, runtime.NewParameterCodec(scheme), codecs)
		info.PrioritizedVersions = []schema.GroupVersion{group.version}
		info.VersionedResourcesStorageMap[group.version.Version] = storage
		install := to.InstallAPIGroup
		if group.version.Group == "" {
			install = func(info *server.APIGroupInfo) error {
				return to.InstallLegacyAPIGroup(server.DefaultLegacyAPIPrefix, info)
			}
		}
		if err := install(&info); err != nil {
			return err
		}
	}
	return nil
}

func newStore(version schema.GroupVersion, kind builtin, scheme *runtime.Scheme, codecs serializer.CodecFactory, etcd serveroptions.EtcdOptions) (*registry.Store, error) {
	config := etcd.StorageConfig
	config.Prefix += "/builtin"
	json, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	config.Codec = codecs.CodecForVersions(json.Serializer, codecs.UniversalDeserializer(), version, version)
	factory := &serveroptions.SimpleStorageFactory{StorageConfig: config}
	plural := version.WithResource(kind.plural).GroupResource()
	any := anything{scheme, names.SimpleNameGenerator, kind.scope == inNamespace}
	store := &registry.Store{
		NewFunc:                   kind.object.DeepCopyObject,
		NewListFunc:               kind.list.DeepCopyObject,
		DefaultQualifiedResource:  plural,
		SingularQualifiedResource: version.WithResource(kind.singular).GroupResource(),
		CreateStrategy:            any,
		UpdateStrategy:            any,
		DeleteStrategy:            any,
		TableConvertor:            rest.NewDefaultTableConvertor(plural),
	}
	return store, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: etcd.CreateRESTOptionsGetter(factory, nil)})
}

type resource struct {
	*registry.Store
	short string
}

func (r resource) ShortNames() []string {
	if r.short == "" {
		return nil
	}
	return []string{r.short}
}

// status is the subresource. Unlike in a cluster, it writes the whole object.
type status struct{ of *registry.Store }

func (s status) New() runtime.Object { return s.of.New() }
func (s status) Destroy()            {}
func (s status) Get(ctx context.Context, name string, options *meta.GetOptions) (runtime.Object, error) {
	return s.of.Get(ctx, name, options)
}
func (s status) Update(ctx context.Context, name string, object rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, options *meta.UpdateOptions) (runtime.Object, bool, error) {
	return s.of.Update(ctx, name, object, create, update, false, options)
}

// anything is the strategy of every kind: each change is allowed as it is.
type anything struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

func (a anything) NamespaceScoped() bool         { return a.namespaced }
func (anything) AllowCreateOnUpdate() bool       { return false }
func (anything) AllowUnconditionalUpdate() bool  { return true }
func (anything) Canonicalize(runtime.Object)     {}
func (anything) PrepareForCreate(_ context.Context, object runtime.Object) {
	if accessor, err := apimeta.Accessor(object); err == nil {
		accessor.SetGeneration(1)
	}
}
func (anything) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (anything) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (anything) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (anything) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (anything) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// describeBuiltin adds them to the API's description, as objects of any fields.
func describeBuiltin(described common.GetOpenAPIDefinitions) common.GetOpenAPIDefinitions {
	return func(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		definitions := described(ref)
		for _, group := range groups {
			for _, kind := range group.kinds {
				for _, object := range []runtime.Object{kind.object, kind.list} {
					any := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
					any.AddExtension("x-kubernetes-preserve-unknown-fields", true)
					definitions[util.GetCanonicalTypeName(object)] = common.OpenAPIDefinition{Schema: any}
				}
			}
		}
		return definitions
	}
}
