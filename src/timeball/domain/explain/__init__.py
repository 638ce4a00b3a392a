"""timeball.domain.explain"""
