package main

import (
	"context"
	"slices"
	"strings"

	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic/registry"
)

// What every client reads before its first request, and what shows that the server is up.
var forEverybody = []string{"/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version"}

// storedRoles allows what the roles and bindings that are stored right now grant, as RBAC does.
type storedRoles struct {
	clusterRoles, clusterRoleBindings, roles, roleBindings *registry.Store
}

func (s *storedRoles) Authorize(_ context.Context, asked authorizer.Attributes) (authorizer.Decision, string, error) {
	who := asked.GetUser()
	if slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	if !asked.IsResourceRequest() {
		for _, prefix := range forEverybody {
			if asked.GetPath() == prefix || strings.HasPrefix(asked.GetPath(), prefix+"/") {
				return authorizer.DecisionAllow, "", nil
			}
		}
		return authorizer.DecisionNoOpinion, "no role grants it", nil
	}
	for _, binding := range list[rbac.ClusterRoleBindingList](s.clusterRoleBindings, "").Items {
		if isBound(who, binding.Subjects, "") && s.grants(binding.RoleRef, "", asked) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	if namespace := asked.GetNamespace(); namespace != "" {
		for _, binding := range list[rbac.RoleBindingList](s.roleBindings, namespace).Items {
			if isBound(who, binding.Subjects, namespace) && s.grants(binding.RoleRef, namespace, asked) {
				return authorizer.DecisionAllow, "", nil
			}
		}
	}
	return authorizer.DecisionNoOpinion, "no role grants it", nil
}

func (s *storedRoles) grants(ref rbac.RoleRef, namespace string, asked authorizer.Attributes) bool {
	var rules []rbac.PolicyRule
	if ref.Kind == "ClusterRole" {
		if role, ok := get(s.clusterRoles, "", ref.Name).(*rbac.ClusterRole); ok {
			rules = role.Rules
		}
	} else if role, ok := get(s.roles, namespace, ref.Name).(*rbac.Role); ok {
		rules = role.Rules
	}
	resource := asked.GetResource()
	if part := asked.GetSubresource(); part != "" {
		resource += "/" + part
	}
	has := func(granted []string, wanted string) bool {
		return slices.Contains(granted, wanted) || slices.Contains(granted, "*")
	}
	return slices.ContainsFunc(rules, func(rule rbac.PolicyRule) bool {
		return has(rule.Verbs, asked.GetVerb()) && has(rule.APIGroups, asked.GetAPIGroup()) && has(rule.Resources, resource) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, asked.GetName()))
	})
}

func isBound(who user.Info, subjects []rbac.Subject, namespace string) bool {
	return slices.ContainsFunc(subjects, func(subject rbac.Subject) bool {
		switch subject.Kind {
		case rbac.UserKind:
			return subject.Name == who.GetName()
		case rbac.GroupKind:
			return slices.Contains(who.GetGroups(), subject.Name)
		case rbac.ServiceAccountKind:
			of := subject.Namespace
			if of == "" {
				of = namespace
			}
			return who.GetName() == "system:serviceaccount:"+of+":"+subject.Name
		}
		return false
	})
}

// Version "0" is answered by the cache of watches. Anything newer makes each request wait until the cache has
// caught up with etcd, about 100 ms.
func list[L any](store *registry.Store, namespace string) *L {
	ctx := request.WithNamespace(context.Background(), namespace)
	found, err := store.List(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return new(L)
	}
	return any(found).(*L)
}

func get(store *registry.Store, namespace, name string) runtime.Object {
	ctx := request.WithNamespace(context.Background(), namespace)
	found, err := store.Get(ctx, name, &meta.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	return found
}
